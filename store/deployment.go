package store

import (
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// Deployments returns all deployments by id. The error names unreadable ones; the rest come too.
func (s *Store) Deployments() ([]Deployment, error) {
	var (
		deployments []Deployment
		rotten      []error
	)
	err := s.view(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(bucketDeployments)).ForEach(func(key, value []byte) error {
			d, err := s.readDeployment(string(key), value)
			if err != nil {
				rotten = append(rotten, err)
				return nil
			}
			deployments = append(deployments, d)
			return nil
		})
	})
	return deployments, errors.Join(append(rotten, err)...)
}

// Deployment returns one deployment, or ErrNotFound.
func (s *Store) Deployment(id string) (d Deployment, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		value := tx.Bucket([]byte(bucketDeployments)).Get([]byte(id))
		if value == nil {
			return fmt.Errorf("deployment %q: %w", id, ErrNotFound)
		}
		d, err = s.readDeployment(id, value)
		return err
	})
	return d, err
}

func (s *Store) readDeployment(id string, stored []byte) (Deployment, error) {
	value, err := s.unseal(bucketDeployments, []byte(id), stored)
	var d Deployment
	if err == nil {
		d, err = decode[Deployment](value)
	}
	if err != nil {
		return Deployment{}, fmt.Errorf("cannot read deployment %q: %w", id, err)
	}
	d.ID = id
	return d, nil
}
