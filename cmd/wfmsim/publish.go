package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/uuid"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/admin"
)

// parameters collects --param NAME=VALUE.
type parameters map[string]any

func (p parameters) String() string { return "" }

func (p parameters) Set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return errors.New("expected NAME=VALUE")
	}
	p[name] = value
	return nil
}

func publishComposeCommand(out io.Writer) command.Command {
	return command.Command{
		Name: "publish-compose", Text: "pack a directory with a compose.yaml, push it, and publish a deployment of it",
		Prepare: func(flags *command.Flags) command.Action {
			flags.More = `
The directory becomes a Compose component in wfmsim's registry, the deployment
has this one component. Every --param is a parameter of the deployment and an
environment variable for its compose.yaml. REGISTRY is always among them: it is the
registry's host and port as devices name it, so that the file can say
image: ${REGISTRY}/name:tag.
`
			client := askFlags(flags)
			values := parameters{}
			id := flags.String("id", "", "`UUID` of the deployment (default: a new one)")
			name := flags.String("name", "", "`NAME` of deployment and component (default: that of the directory)")
			device := flags.String("device", "", "`ID` of the device (default: wfmsim's own)")
			dir := flags.String("package", "", "`DIR` with compose.yaml and the files it needs (required)")
			version := flags.String("version", "1.0.0", "`VERSION` of the component, also its tag")
			registry := flags.String("registry", "", "`HOST:PORT` of the registry as the device names it, where it differs")
			timeout := flags.String("timeout", "", "`LIMIT` of the installation, such as 5m0s")
			flags.Var(values, "param", "`NAME=VALUE`, may be repeated")
			return func(ctx context.Context, _ []string) error {
				if *dir == "" {
					return command.Usagef("give --package")
				}
				if *name == "" {
					abs, err := filepath.Abs(*dir)
					if err != nil {
						return err
					}
					*name = filepath.Base(abs)
				}
				if *id == "" {
					*id = uuid.NewString()
				}
				info, err := client.Info(ctx)
				if err != nil {
					return err
				}
				if *device == "" {
					*device = info.DefaultClient
				}
				if *registry == "" {
					*registry = info.RegistryHost
				}
				repository := "compose/" + *name
				if err := pushComponent(ctx, info, repository, *name, *version, *dir); err != nil {
					return err
				}
				if _, given := values["REGISTRY"]; !given {
					values["REGISTRY"] = *registry
				}
				document, err := wfmsim.Deployment{
					ID: *id, Name: *name, DeviceID: *device,
					Components: []wfmsim.Component{{
						Name: *name, Repository: *registry + "/" + repository, Revision: *version, Timeout: *timeout,
					}},
					Parameters: values,
				}.Document()
				if err != nil {
					return err
				}
				published, err := client.Publish(ctx, document)
				if err != nil {
					return err
				}
				tellPublished(out, published)
				return nil
			}
		},
	}
}

func pushComponent(ctx context.Context, info admin.Info, repository, name, version, dir string) error {
	files, err := ociimage.ReadFiles(dir)
	if err != nil {
		return err
	}
	if files["compose.yaml"] == nil {
		return fmt.Errorf("cannot pack %s: it has no compose.yaml, the file name that the standard requires", dir)
	}
	component, err := ociimage.Component{Name: name, Version: version, Files: files}.Build()
	if err != nil {
		return err
	}
	return ociimage.Registry{URL: info.Registry}.Push(ctx, repository, version, component)
}

func pushImageCommand(out io.Writer) command.Command {
	return command.Command{
		Name: "push-image", Text: "create an image of one static program and push it to the registry",
		Prepare: func(flags *command.Flags) command.Action {
			flags.More = `
The image holds the program at /NAME-OF-THE-FILE, which is its entry point, and
nothing else. For programs that need more, push images to the registry by other
tools, such as "docker push" or "skopeo copy --dest-tls-verify=false".
`
			client := askFlags(flags)
			name := flags.String("name", "", "`REPOSITORY` in the registry, such as margolite/demoapp (required)")
			tag := flags.String("tag", "1.0.0", "`TAG` of the image")
			binary := flags.String("binary", "", "`FILE` of a static Linux program (required)")
			arch := flags.String("arch", runtime.GOARCH, "`ARCH` the program is for, such as arm64")
			padding := flags.Int("padding", 0, "add a layer of `MIB`, to make the download visible")
			return func(ctx context.Context, _ []string) error {
				if *name == "" || *binary == "" {
					return command.Usagef("give --name and --binary")
				}
				info, err := client.Info(ctx)
				if err != nil {
					return err
				}
				program, err := os.ReadFile(*binary)
				if err != nil {
					return fmt.Errorf("cannot read program: %w", err)
				}
				entry := "/" + filepath.Base(*binary)
				image := ociimage.Image{
					Platform: ocispec.Platform{OS: "linux", Architecture: *arch},
					Layers:   []ociimage.Layer{{Entries: []ociimage.Entry{ociimage.Executable(entry, program)}}},
					Config:   ocispec.ImageConfig{Entrypoint: []string{entry}, Env: []string{"VERSION=" + *tag}},
				}
				if *padding > 0 {
					image.Layers = append(image.Layers, ociimage.Padding(*padding<<20))
				}
				artifact, err := ociimage.Build(image)
				if err != nil {
					return err
				}
				if err := (ociimage.Registry{URL: info.Registry}).Push(ctx, *name, *tag, artifact); err != nil {
					return err
				}
				fmt.Fprintf(out, "%s/%s:%s is %s\n", info.RegistryHost, *name, *tag, artifact.Digest)
				return nil
			}
		},
	}
}
