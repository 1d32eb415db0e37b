package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/margolite/margolite/test/ociimage"
)

// workload is what a machine has to do while its memory is measured.
type workload struct {
	name     string
	services int
	checked  bool // with health checks, published ports and an order, and somebody looks at them
}

// workloads are those that the memory of a machine is measured under.
var workloads = []workload{
	{name: idleLoad},
	{name: "simple", services: 1},
	{name: threeServices, services: 3, checked: true},
}

const (
	idleLoad      = "idle"
	threeServices = "realistic"

	loadImage    = "bench/server"
	loadVersion  = "1"
	loadPadding  = 32 << 20 // bytes of the image that a device only keeps
	firstPort    = 18080    // of the published ones
	loadRevision = "1.0.0"
)

// compose is the Compose file of a load: servers of web pages. IMAGE is what they
// run, GREETING an environment variable of the first one.
func (l workload) compose() string {
	var text strings.Builder
	text.WriteString("services:\n")
	for i := range l.services {
		fmt.Fprintf(&text, `  s%d:
    image: ${IMAGE:?}
    command: [/bin/busybox, httpd, -f, -p, "8080", -h, /www]
    restart: unless-stopped
    stop_signal: SIGKILL
`, i+1)
		if i == 0 {
			text.WriteString("    environment: {GREETING: \"${GREETING:-}\"}\n")
		}
		if !l.checked {
			continue
		}
		fmt.Fprintf(&text, `    ports: ["%d:8080"]
    volumes: [data:/data]
    healthcheck:
      test: [CMD, /bin/busybox, wget, -q, -O, /dev/null, "http://127.0.0.1:8080/"]
      interval: 5s
      timeout: 5s
`, firstPort+i)
		if i > 0 {
			text.WriteString("    depends_on: {s1: {condition: service_healthy}}\n")
		}
	}
	if l.checked {
		text.WriteString("volumes: {data: {}}\n")
	}
	return text.String()
}

// component is the load as a package.
func (l workload) component() (*ociimage.Artifact, error) {
	return ociimage.Component{Name: l.name, Version: loadRevision, Files: ociimage.Files{"compose.yaml": []byte(l.compose())}}.Build()
}

// saveServer writes the image of the loads, under a name, as other engines load it.
func saveServer(name, file string) error {
	image, err := loadServer()
	if err != nil {
		return err
	}
	archive, err := ociimage.Saved(map[string]*ociimage.Artifact{name: image})
	if err != nil {
		return err
	}
	return os.WriteFile(file, archive, 0o600)
}

// loadServer is the image that all loads run.
func loadServer() (*ociimage.Artifact, error) {
	entries, err := ociimage.Busybox()
	if err != nil {
		return nil, err
	}
	return ociimage.Build(ociimage.Image{Layers: []ociimage.Layer{
		{Entries: append(entries, ociimage.Entry{Name: "www/index.html", Mode: 0o644, Data: []byte("Hello\n")})},
		ociimage.Padding(loadPadding),
	}})
}
