package plant

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/demoapp/demoimage"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/wfmsim"
)

// Component is where the application's Compose component is in the registry.
const (
	Component        = "apps/demo"
	ComponentVersion = "1.0.0"
)

// Application is the demonstration's application of two services: its images
// and its Compose component. It is built once, for any number of plants.
type Application struct {
	images    map[string]*ociimage.Artifact // by version
	component *ociimage.Artifact
	compose   []byte
}

// BuildApplication builds it with an image for each version. It needs the go
// command.
func BuildApplication(ctx context.Context, versions ...string) (*Application, error) {
	program, err := demoimage.Program(ctx, "")
	if err != nil {
		return nil, err
	}
	return newApplication(ctx, program, versions)
}

// demoProgram is the file of the application's program.
const demoProgram = "demoapp"

// BuildDemo builds the application's program into a directory. It needs the go command.
func BuildDemo(ctx context.Context, dir string) error {
	program, err := demoimage.Program(ctx, "")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, demoProgram), program, 0o755)
}

// DemoProgram is the application's program, which BuildDemo made in ProgramsDir.
func DemoProgram() ([]byte, error) {
	return os.ReadFile(filepath.Join(ProgramsDir(), demoProgram))
}

// LoadApplication is the application of DemoProgram, with an image for each version.
func LoadApplication(ctx context.Context, versions ...string) (*Application, error) {
	program, err := DemoProgram()
	if err != nil {
		return nil, err
	}
	return newApplication(ctx, program, versions)
}

func newApplication(ctx context.Context, program []byte, versions []string) (*Application, error) {
	c, err := demoimage.Component(ctx, ComponentVersion)
	if err != nil {
		return nil, err
	}
	a := &Application{images: map[string]*ociimage.Artifact{}, compose: c.Files["compose.yaml"]}
	for _, v := range versions {
		if a.images[v], err = demoimage.FromProgram(program, demoimage.Options{Version: v}); err != nil {
			return nil, err
		}
	}
	a.component, err = c.Build()
	return a, err
}

// Compose is the Compose file in the component.
func (a *Application) Compose() []byte { return a.compose }

// Size is how many bytes a device has to fetch for a version: the image with
// its configuration, not the Compose component.
func (a *Application) Size(version string) int64 {
	image := a.images[version]
	n := int64(len(image.Manifest))
	for _, blob := range image.Blobs {
		n += int64(len(blob))
	}
	return n
}

func (a *Application) push(ctx context.Context, url string) error {
	to := ociimage.Registry{URL: url}
	for version, image := range a.images {
		if err := to.Push(ctx, demoimage.Repository, version, image); err != nil {
			return err
		}
	}
	return to.Push(ctx, Component, ComponentVersion, a.component)
}

// Deployment describes one of the application, on port 8090 unless parameters
// say otherwise.
func (p *Plant) Deployment(id string, parameters map[string]any) wfmsim.Deployment {
	d := wfmsim.Deployment{
		ID: id, Name: "demo-deployment", DeviceID: Device, ApplicationID: "demo",
		Components: []wfmsim.Component{{Name: "demo", Repository: p.Registry.Address() + "/" + Component, Revision: ComponentVersion}},
		Parameters: map[string]any{"REGISTRY": p.Registry.Address(), "PORT": 8090},
	}
	maps.Copy(d.Parameters, parameters)
	return d
}

// Answer is what the application says to a visitor.
type Answer struct {
	Text     string    `json:"text"`
	Greeting string    `json:"greeting"`
	Version  string    `json:"version"`
	Visit    uint64    `json:"visit"`
	Started  time.Time `json:"started"`
}

// Ask visits the application on its published port.
func Ask(ctx context.Context, port int) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var a Answer
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
	if err != nil {
		return a, err
	}
	req.Header.Set("Accept", "application/json")
	req.Close = true // containers are replaced under a connection that stays
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		return a, err
	}
	if res.StatusCode != http.StatusOK {
		return a, fmt.Errorf("%s: %s", res.Status, body)
	}
	return a, json.Unmarshal(body, &a)
}

// Visit waits until the application answers on its published port, with that greeting
// unless it is empty.
func Visit(ctx context.Context, port int, greeting string) (a Answer, err error) {
	err = Eventually(ctx, func() (err error) {
		if a, err = Ask(ctx, port); err == nil && greeting != "" && a.Greeting != greeting {
			err = fmt.Errorf("the application greets with %q, want %q", a.Greeting, greeting)
		}
		return err
	})
	return a, err
}

// Services are the services of a deployment, by name.
func Services(d control.Deployment) map[string]control.Service {
	all := map[string]control.Service{}
	for _, c := range d.Components {
		for _, s := range c.Services {
			all[s.Name] = s
		}
	}
	return all
}
