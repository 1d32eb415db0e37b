module github.com/margolite/margolite

go 1.26.6

require (
	filippo.io/age v1.2.1 // backups: the encryption of a device's identity
	github.com/compose-spec/compose-go/v2 v2.16.2 // the reference loader of Compose files; its meaning is the product
	github.com/containerd/console v1.0.5 // tests: terminals; containerd's shim has it linked anyway
	github.com/containerd/containerd/api v1.12.0 // containerd's messages, for tasks and events
	github.com/containerd/containerd/v2 v2.4.2 // pulls and runs; carried inside
	github.com/containerd/continuity v0.5.0 // resolves paths inside a root file system without leaving it
	github.com/containerd/errdefs v1.0.0 // containerd's error kinds
	github.com/containerd/errdefs/pkg v0.3.0 // the same, as they come over gRPC
	github.com/containerd/go-runc v1.2.1 // how the shim runs runc
	github.com/containerd/log v0.2.0 // containerd's logger, to pass it on to slog
	github.com/containerd/platforms v1.0.0-rc.5 // what runs on a machine, and which image of several is best for it
	github.com/containerd/plugin v1.1.0 // the graph of containerd's parts
	github.com/containerd/ttrpc v1.2.10 // how shims publish their events
	github.com/containerd/typeurl/v2 v2.3.0 // the envelope of specs and events
	github.com/distribution/reference v0.6.0 // the normal form of image names
	github.com/docker/go-connections v0.7.0 // ranges of ports; compose-go has it linked anyway
	github.com/docker/go-units v0.5.0 // times and sizes, in the words of docker ps
	github.com/dunglas/httpsfv v1.1.2 // wfmsim: structured fields, to verify signatures independently
	github.com/fxamacker/cbor/v2 v2.9.4 // signatures of Notation in COSE
	github.com/google/go-cmp v0.7.0 // tests: readable differences
	github.com/google/go-containerregistry v0.22.1 // tests and wfmsim: a registry to pull from
	github.com/google/nftables v0.3.0 // rules of the kernel's firewall
	github.com/google/uuid v1.6.0 // ids of deployments; containerd has it linked anyway
	github.com/klauspost/compress v1.20.0 // zstd layers, with bounded memory
	github.com/mdlayher/netlink v1.11.2 // below nftables: deadlines, and hearing of changes
	github.com/moby/profiles/seccomp v0.3.0 // Docker's default filter of system calls, and its format of profiles
	github.com/moby/sys/mountinfo v0.7.3 // what is mounted where
	github.com/moby/sys/signal v0.7.1 // signals by name
	github.com/moby/sys/user v0.5.0 // users and groups of images
	github.com/moby/sys/userns v0.2.1 // whether overlayfs can hide files: not in a user namespace
	github.com/notaryproject/notation-core-go v1.3.0 // tests: signatures as Notation makes them
	github.com/opencontainers/go-digest v1.0.0 // digests, checked by the standard library
	github.com/opencontainers/image-spec v1.1.1 // manifests and image configurations
	github.com/opencontainers/runtime-spec v1.3.0 // what runc is told
	github.com/prometheus/client_model v0.6.2 // tests: what the next one reads
	github.com/prometheus/common v0.70.1 // tests: whether metrics are text that Prometheus takes
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.1 // tests and wfmsim: bodies against the published schemas; compose-go has it linked anyway
	github.com/shirou/gopsutil/v4 v4.26.10 // the machine: processors, memory, storage, sockets
	github.com/sirupsen/logrus v1.10.2 // containerd's logger behind its log package
	github.com/spiffe/go-spiffe/v2 v2.9.0 // SPIFFE IDs; 7 KB
	github.com/vishvananda/netlink v1.3.1 // links, addresses, routes and tracked connections
	github.com/yaronf/httpsign v0.4.2 // tests: an independent verifier of message signatures
	go.etcd.io/bbolt v1.5.0 // the store; containerd has it linked anyway
	go.opentelemetry.io/proto/otlp v1.11.0 // tests: whether metrics are messages that a collector takes
	go.yaml.in/yaml/v4 v4.0.0 // the YAML that compose-go reads, for all other YAML as well
	golang.org/x/mod v0.41.0 // revisions of packages; tests and packaging: modules as a proxy serves them
	golang.org/x/net v0.59.0 // DNS messages, for names in sandboxes, 17 KB; few connections for who asks for metrics, 3 KB
	golang.org/x/sync v0.24.0 // groups of goroutines that end together
	golang.org/x/sys v0.49.0 // what the kernel offers and the standard library does not
	golang.org/x/term v0.47.0 // terminals: keys as they come, and their size
	golang.org/x/text v0.42.0 // wfmsim: the language in which a schema says what is wrong; compose-go has it linked anyway
	golang.org/x/time v0.16.0 // the pace of DNS queries of a sandbox, and of reports about what runs
	google.golang.org/grpc v1.83.2 // containerd's own socket
	google.golang.org/protobuf v1.36.12 // containerd's messages
	tags.cncf.io/container-device-interface v1.1.1 // devices by name, as their vendors describe them
	tags.cncf.io/container-device-interface/specs-go v1.1.1 // the form of these descriptions
)

require (
	github.com/BurntSushi/toml v1.4.1-0.20240526193622-a339e1f7089c // indirect
	github.com/Microsoft/go-winio v0.6.3-0.20251027160822-ad3df93bed29 // indirect
	github.com/Microsoft/hcsshim v0.15.0-rc.4 // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/bitfield/gotestdox v0.2.2 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/cilium/ebpf v0.17.3 // indirect
	github.com/containerd/cgroups/v3 v3.1.3 // indirect
	github.com/containerd/fifo v1.1.0 // indirect
	github.com/containerd/log/otel v0.1.0 // indirect
	github.com/containerd/otelttrpc v0.1.0 // indirect
	github.com/coreos/go-systemd/v22 v22.7.0 // indirect
	github.com/decred/dcrd/dcrec/secp256k1/v4 v4.4.1 // indirect
	github.com/dnephin/pflag v1.0.7 // indirect
	github.com/docker/go-events v0.1.0 // indirect
	github.com/ebitengine/purego v0.11.2 // indirect
	github.com/fatih/color v1.18.0 // indirect
	github.com/felixge/httpsnoop v1.1.0 // indirect
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/go-ole/go-ole v1.3.0 // indirect
	github.com/go-viper/mapstructure/v2 v2.4.0 // indirect
	github.com/goccy/go-json v0.10.6 // indirect
	github.com/godbus/dbus/v5 v5.1.0 // indirect
	github.com/golang-jwt/jwt/v4 v4.5.2 // indirect
	github.com/google/shlex v0.0.0-20191202100458-e7afc7fbc510 // indirect
	github.com/intel/goresctrl v0.13.0 // indirect
	github.com/lestrrat-go/blackmagic v1.0.4 // indirect
	github.com/lestrrat-go/dsig v1.2.1 // indirect
	github.com/lestrrat-go/dsig-secp256k1 v1.0.0 // indirect
	github.com/lestrrat-go/httpcc v1.0.1 // indirect
	github.com/lestrrat-go/httprc v1.0.6 // indirect
	github.com/lestrrat-go/httprc/v3 v3.0.5 // indirect
	github.com/lestrrat-go/iter v1.0.2 // indirect
	github.com/lestrrat-go/jwx/v2 v2.1.2 // indirect
	github.com/lestrrat-go/jwx/v3 v3.1.1 // indirect
	github.com/lestrrat-go/option v1.0.1 // indirect
	github.com/lestrrat-go/option/v2 v2.0.0 // indirect
	github.com/lufia/plan9stats v0.0.0-20211012122336-39d0f177ccd0 // indirect
	github.com/mattn/go-colorable v0.1.13 // indirect
	github.com/mattn/go-isatty v0.0.20 // indirect
	github.com/mattn/go-shellwords v1.0.13 // indirect
	github.com/mdlayher/socket v0.6.0 // indirect
	github.com/mdlayher/vsock v1.3.0 // indirect
	github.com/moby/locker v1.0.1 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/notaryproject/tspclient-go v1.0.0 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/power-devops/perfstat v0.0.0-20260805114148-88456608a4f6 // indirect
	github.com/prometheus/client_golang v1.24.1 // indirect
	github.com/prometheus/procfs v0.21.1 // indirect
	github.com/segmentio/asm v1.2.1 // indirect
	github.com/tklauser/go-sysconf v0.4.0 // indirect
	github.com/tklauser/numcpus v0.12.0 // indirect
	github.com/valyala/fastjson v1.6.10 // indirect
	github.com/veraison/go-cose v1.3.0 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	github.com/xhit/go-str2duration/v2 v2.1.0 // indirect
	github.com/yusufpapurcu/wmi v1.2.4 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc v0.71.0 // indirect
	go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp v0.71.0 // indirect
	go.opentelemetry.io/contrib/propagators/envcar v0.71.0 // indirect
	go.opentelemetry.io/otel v1.46.0 // indirect
	go.opentelemetry.io/otel/metric v1.46.0 // indirect
	go.opentelemetry.io/otel/sdk v1.46.0 // indirect
	go.opentelemetry.io/otel/trace v1.46.0 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
	go.yaml.in/yaml/v3 v3.0.6 // indirect
	golang.org/x/crypto v0.57.0 // indirect
	golang.org/x/exp/typeparams v0.0.0-20231108232855-2478ac86f678 // indirect
	golang.org/x/tools v0.51.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260825221802-da73d73af1c5 // indirect
	gopkg.in/inf.v0 v0.9.1 // indirect
	gotest.tools/gotestsum v1.13.0 // indirect
	honnef.co/go/tools v0.8.2 // indirect
	k8s.io/apimachinery v0.37.0 // indirect
	mvdan.cc/gofumpt v0.12.0 // indirect
	sigs.k8s.io/json v0.0.0-20250730193827-2d320260d730 // indirect
	sigs.k8s.io/yaml v1.6.0 // indirect
)

tool (
	gotest.tools/gotestsum
	honnef.co/go/tools/cmd/staticcheck
	mvdan.cc/gofumpt
)
