package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
)

// healthFile has a database that takes a while, a job that needs it, and a
// service that needs both.
const healthFile = `
services:
  db:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sh, -c, "sleep 1; touch /tmp/ready; exec sleep 100000"]
    stop_signal: SIGKILL
    healthcheck: {test: %s, interval: 200ms, timeout: 10s, retries: 2, start_period: %s, start_interval: 200ms}
  setup:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sh, -c, "sleep 1; echo done"]
    restart: "no"
    depends_on: {db: {condition: service_healthy}}
  counter:
    image: ${REGISTRY}/margolite/demoapp:1.0.0
    command: [counter]
    volumes: ["data:/data"]
  web:
    image: ${REGISTRY}/margolite/demoapp:1.0.0
    command: [web]
    ports: ["8090:8080"]
    depends_on:
      setup: {condition: service_completed_successfully}
      counter: {condition: service_started}
volumes: {data: {}}
`

// Services wait for what they depend on, health is shown, and a deployment is
// installed once it is healthy; one that never becomes healthy fails, and the
// former revision is back.
func TestPKG11PKG14HealthGatesWhatDependsOnIt(t *testing.T) {
	long(t, "the rest of health")
	onBackends(t, func(t *testing.T, r *rig) {
		r.running()
		good := r.application(labID, "1.0.0", fmt.Sprintf(healthFile, "[CMD, test, -e, /tmp/ready]", "60s"), nil)
		bad := r.application(labID, "2.0.0", fmt.Sprintf(healthFile, "[CMD, cat, /tmp/nonesuch]", "1s"), nil)
		published := r.publish(good)
		seen := map[string]bool{}
		r.eventually("the database is looked at", func() error {
			services, err := r.servicesOnce(labID)
			if err != nil {
				return err
			}
			if w, ok := services["web"]; ok && w.State == "running" && services["setup"].State != "done" {
				t.Errorf("web runs while setup is %+v", services["setup"])
			}
			if s, ok := services["setup"]; ok && s.State != "created" && services["db"].Health.Status != "healthy" {
				t.Errorf("setup is %s while db is %+v", s.State, services["db"].Health)
			}
			for _, s := range services {
				if s.Waiting != "" {
					seen["waiting"] = true
				}
				if s.Health != nil {
					seen[s.Health.Status] = true
				}
			}
			if !seen["healthy"] {
				return fmt.Errorf("seen %v", seen)
			}
			return nil
		})
		r.await(labID, margo.Installed, published.Version)
		if !seen["starting"] || !seen["waiting"] {
			t.Errorf("status showed %v, want also starting and waiting", seen)
		}
		services := r.services(labID)
		if h := services["db"].Health; h == nil || h.Status != "healthy" {
			t.Errorf("installed while db is %+v", h)
		}
		if s := services["setup"]; s.State != "done" || s.ExitCode == nil || *s.ExitCode != 0 {
			t.Errorf("setup is %+v, want done", s)
		}
		r.answers(8090)

		published = r.publish(bad)
		r.await(labID, margo.Failed, published.Version)
		reports := r.WFM.Statuses(labID)
		last := reports[len(reports)-1].Status
		if last.Error == nil || last.Error.Code != "CONTAINER_UNHEALTHY" || !strings.Contains(last.Error.Message, "db") {
			t.Errorf("the WFM heard %+v, want CONTAINER_UNHEALTHY of db", last.Error)
		}
		r.eventually("the former revision is back", func() error {
			services, err := r.servicesOnce(labID)
			if err != nil {
				return err
			}
			if h := services["db"].Health; h == nil || h.Status != "healthy" {
				return fmt.Errorf("db is %+v", h)
			}
			_, err = plant.Ask(t.Context(), 8090)
			return err
		})
	})
}
