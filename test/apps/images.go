// Package apps holds applications as people run them on devices, each in a
// directory: a Compose file with what belongs to it, and under x-test what is
// done with it. TestDEV04OBS07Applications in test/compose plays them.
package apps

import (
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/test/debimage"
	"github.com/margolite/margolite/test/ociimage"
)

// Images are what the applications run, as $REGISTRY/name:1 and :2, configured
// much like the images of the same names that people know.
func Images() []debimage.Image {
	type empty = map[string]struct{}
	return []debimage.Image{
		{Name: "tools", Config: ocispec.ImageConfig{Cmd: []string{"sleep", "1000"}, StopSignal: "SIGKILL"}},
		{
			Name: "mosquitto", Packages: []string{"mosquitto", "mosquitto-clients"},
			Files: []ociimage.Entry{
				debimage.Directory("/mosquitto", "mosquitto"), debimage.Directory("/mosquitto/config", "mosquitto"),
				debimage.Directory("/mosquitto/data", "mosquitto"),
			},
			Config: ocispec.ImageConfig{
				User: "mosquitto", Cmd: []string{"mosquitto", "-c", "/mosquitto/config/mosquitto.conf"},
				Volumes: empty{"/mosquitto/data": {}}, ExposedPorts: empty{"1883/tcp": {}},
			},
		},
		{
			Name: "nginx", Packages: []string{"nginx"},
			Config: ocispec.ImageConfig{Cmd: []string{"nginx", "-g", "daemon off;"}, ExposedPorts: empty{"80/tcp": {}}, StopSignal: "SIGQUIT"},
		},
		{
			Name: "redis", Packages: []string{"redis-server"},
			Files: []ociimage.Entry{debimage.Directory("/data", "redis")},
			Config: ocispec.ImageConfig{
				User: "redis", WorkingDir: "/data", Cmd: []string{"redis-server", "--save", ""},
				Volumes: empty{"/data": {}}, ExposedPorts: empty{"6379/tcp": {}},
			},
		},
		{
			Name: "memcached", Packages: []string{"memcached"},
			Config: ocispec.ImageConfig{User: "memcache", Entrypoint: []string{"memcached"}, ExposedPorts: empty{"11211/tcp": {}}},
		},
		{
			Name: "node-exporter", Packages: []string{"prometheus-node-exporter"},
			Config: ocispec.ImageConfig{User: "nobody", Entrypoint: []string{"prometheus-node-exporter"}},
		},
		{
			Name: "haproxy", Packages: []string{"haproxy"},
			Config: ocispec.ImageConfig{
				User: "haproxy", Cmd: []string{"haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"}, StopSignal: "SIGUSR1",
			},
		},
		{
			Name: "vsftpd", Packages: []string{"vsftpd"},
			Files: []ociimage.Entry{
				debimage.Directory("/srv/ftp", "root"), debimage.Directory("/srv/ftp/upload", "ftp"),
				debimage.Directory("/run/vsftpd", "root"), debimage.Directory("/run/vsftpd/empty", "root"),
			},
			Config: ocispec.ImageConfig{Cmd: []string{"vsftpd", "/etc/vsftpd.conf"}, Volumes: empty{"/srv/ftp/upload": {}}},
		},
		{
			Name: "dnsmasq", Packages: []string{"dnsmasq-base"},
			Files:  []ociimage.Entry{debimage.Directory("/var/lib/misc", "dnsmasq")},
			Config: ocispec.ImageConfig{Entrypoint: []string{"dnsmasq", "--keep-in-foreground", "--log-facility=-"}},
		},
		{
			Name: "postgres", Packages: []string{"postgresql-15"},
			Files: []ociimage.Entry{
				debimage.Directory("/var/lib/postgresql", "postgres"), debimage.Directory("/var/lib/postgresql/data", "postgres"),
				debimage.Directory("/run/postgresql", "postgres"),
				ociimage.Executable("/usr/local/bin/docker-entrypoint.sh", []byte(startPostgres)),
			},
			Config: ocispec.ImageConfig{
				User: "postgres", Entrypoint: []string{"docker-entrypoint.sh"}, Cmd: []string{"postgres"}, StopSignal: "SIGINT",
				Env: []string{
					"PATH=/usr/local/bin:/usr/lib/postgresql/15/bin:/usr/bin:/bin",
					"PGDATA=/var/lib/postgresql/data/pgdata", "LANG=C.UTF-8",
				},
				Volumes: empty{"/var/lib/postgresql/data": {}}, ExposedPorts: empty{"5432/tcp": {}},
			},
		},
		{
			Name: "rsyslog", Packages: []string{"rsyslog"},
			Config: ocispec.ImageConfig{Cmd: []string{"rsyslogd", "-n", "-i", "NONE", "-f", "/etc/rsyslog.conf"}},
		},
		{Name: "nftables", Packages: []string{"nftables"}, Config: ocispec.ImageConfig{Cmd: []string{"nft", "monitor"}}},
		{Name: "openssl", Packages: []string{"openssl"}, Config: ocispec.ImageConfig{Entrypoint: []string{"openssl"}}},
	}
}

// startPostgres makes a database the first time, as the image that people know
// does, and then becomes its server.
const startPostgres = `#!/bin/sh
set -e
if [ "$1" = postgres ] && [ ! -e "$PGDATA/PG_VERSION" ]; then
	password=$(mktemp)
	cat "$POSTGRES_PASSWORD_FILE" > "$password"
	initdb --username=postgres --pwfile="$password" --auth=scram-sha-256 --encoding=UTF8 --locale=C --no-sync > /dev/null
	rm "$password"
	echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
	echo "jit = off" >> "$PGDATA/postgresql.conf"
	echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
fi
exec "$@"
`
