package image

import (
	"encoding/json"
	"fmt"
	"time"
)

// Health is the HEALTHCHECK of an image: an extension of Docker that OCI's
// configuration does not have.
type Health struct {
	Test          []string
	Interval      time.Duration
	Timeout       time.Duration
	StartPeriod   time.Duration
	StartInterval time.Duration
	Retries       int
}

func healthOf(config []byte) (*Health, error) {
	var c struct {
		Config struct{ Healthcheck *Health } `json:"config"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, bad(fmt.Errorf("cannot read the health check of the image: %w", err))
	}
	return c.Config.Healthcheck, nil
}
