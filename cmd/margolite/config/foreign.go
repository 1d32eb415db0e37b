package config

import (
	"reflect"
	"time"

	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/policy"
)

// foreign gives tags to the structs of packages that do not know the file: for each a
// struct with the same fields, which the conversions make the compiler check.
var foreign = tagged(
	policy.Options(options{}), options{},
	policy.Rules(rules{}), rules{},
	policy.Hook(hook{}), hook{},
	policy.Override(override{}), override{},
	policy.Allow(allow{}), allow{},
	capability.Offer(offer{}), offer{},
	capability.Reserved(reserved{}), reserved{},
	capability.Peripheral(peripheral{}), peripheral{},
)

func tagged(pairs ...any) map[reflect.Type]reflect.Type {
	all := make(map[reflect.Type]reflect.Type)
	for i := 0; i < len(pairs); i += 2 {
		all[reflect.TypeOf(pairs[i])] = reflect.TypeOf(pairs[i+1])
	}
	return all
}

type options struct {
	Rules     policy.Rules      `yaml:",inline"`
	Overrides []policy.Override `yaml:"deployments" most:"64"`
	Order     policy.Order      `yaml:"order" one:"none manifest"`
	Allow     policy.Allow      `yaml:"allow"`
}

type rules struct {
	Approval policy.Approval `yaml:"approval" one:"none updates all"`
	Windows  policy.Windows  `yaml:"windows" most:"64"`
	Rollback policy.Rollback `yaml:"rollback" one:"auto manual off"`
	Hook     policy.Hook     `yaml:"hook"`
}

type hook struct {
	Command []string      `yaml:"command" is:"argument" most:"64" all:"command"`
	Timeout time.Duration `yaml:"timeout" least:"1s" most:"1h"`
}

// An override replaces only what it mentions. An empty list of windows is a mention:
// changes may happen at any time.
type override struct {
	Deployments []string          `yaml:"deployments" is:"deployment" most:"256"`
	Labels      map[string]string `yaml:"labels" names:"word" is:"line"`
	Approval    policy.Approval   `yaml:"approval" one:"none updates all"`
	Windows     policy.Windows    `yaml:"windows" most:"64" empty:"kept"`
	Rollback    policy.Rollback   `yaml:"rollback" one:"auto manual off"`
	Hook        *policy.Hook      `yaml:"hook"`
}

// The tables of allow have defaults, to which the file adds.
type allow struct {
	Privileged     bool                          `yaml:"privileged"`
	Namespaces     map[string]bool               `yaml:"namespaces" names:"namespaces"`
	Mounts         map[string]policy.MountAccess `yaml:"mounts" names:"mount" is:"access"`
	Devices        map[string]bool               `yaml:"devices" names:"device"`
	Capabilities   map[string]bool               `yaml:"capabilities" names:"capability"`
	Unconfined     map[string]bool               `yaml:"unconfined" names:"unconfined"`
	Shared         []string                      `yaml:"shared" is:"shared" most:"256"`
	Ports          []policy.PortRange            `yaml:"ports" most:"64"`
	Registries     []string                      `yaml:"registries" is:"registry" most:"64"`
	Tags           bool                          `yaml:"tags"`
	Unsigned       bool                          `yaml:"unsigned"`
	UnsignedImages bool                          `yaml:"unsignedImages"`
	CPUs           float64                       `yaml:"cpus"`
	Memory         int64                         `yaml:"memory"`
	Storage        int64                         `yaml:"storage"`
}

type offer struct {
	Cores             float64                 `yaml:"cpus"`
	Memory            uint64                  `yaml:"memory"`
	Storage           uint64                  `yaml:"storage"`
	Reserved          capability.Reserved     `yaml:"reserved"`
	HiddenInterfaces  []string                `yaml:"interfaces.hide" is:"line" most:"64"`
	AddedInterfaces   []capability.Interface  `yaml:"interfaces.add" one:"ethernet wifi cellular bluetooth usb canbus rs232" most:"64"`
	HiddenPeripherals []string                `yaml:"peripherals.hide" is:"line" most:"64"`
	AddedPeripherals  []capability.Peripheral `yaml:"peripherals.add" most:"32"`
}

type reserved struct {
	Cores   float64 `yaml:"cpus"`
	Memory  uint64  `yaml:"memory"`
	Storage uint64  `yaml:"storage"`
}

type peripheral struct {
	Kind   capability.PeripheralKind `yaml:"type" one:"gpu npu display camera microphone speaker"`
	Name   string
	Vendor string `yaml:"manufacturer" is:"line"`
	Model  string `yaml:"model" is:"line"`
	Driver string
}
