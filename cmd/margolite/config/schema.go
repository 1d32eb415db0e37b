package config

import (
	"time"

	"go.yaml.in/yaml/v4"
)

const day = 24 * time.Hour

// schema is the format of the file: which keys there are, of which type, which
// values are possible, and where each of them goes.
func (c *Config) schema() fields {
	return fields{
		"device": section(fields{
			"id":           text(&c.Device.ID, optional(deviceID)),
			"vendor":       text(&c.Device.Vendor, line),
			"modelNumber":  text(&c.Device.ModelNumber, line),
			"serialNumber": text(&c.Device.SerialNumber, line),
			"labels":       labels(&c.Device.Labels),
			"cpus":         cores(&c.Device.Offer.Cores),
			"memory":       amount(&c.Device.Offer.Memory),
			"storage":      amount(&c.Device.Offer.Storage),
			"reserved": section(fields{
				"cpus":    cores(&c.Device.Offer.Reserved.Cores),
				"memory":  amount(&c.Device.Offer.Reserved.Memory),
				"storage": amount(&c.Device.Offer.Reserved.Storage),
			}),
			"interfaces": section(fields{
				"add":  addedInterfaces(&c.Device.Offer.AddedInterfaces),
				"hide": list(&c.Device.Offer.HiddenInterfaces, 64, line),
			}),
			"peripherals": section(fields{
				"add":  items(&c.Device.Offer.AddedPeripherals, 32, addedPeripheral),
				"hide": list(&c.Device.Offer.HiddenPeripherals, 64, line),
			}),
		}),
		"wfm": section(fields{
			"url":         text(&c.WFM.URL, optional(source)),
			"revision":    choice(&c.WFM.Revision, values{RC3, RC2, RC1}),
			"certificate": file(&c.WFM.Certificate, path),
			"key":         file(&c.WFM.Key, path),
			"trustBundle": file(&c.WFM.TrustBundle, optional(trustBundle)),
			"ids":         list(&c.WFM.IDs, 16, spiffeID),
			"ca":          file(&c.WFM.CA, optional(path)),
			"authorization": section(fields{
				"basic":  file(&c.WFM.Authorization.Basic, optional(secret)),
				"bearer": file(&c.WFM.Authorization.Bearer, optional(secret)),
			}),
			"clientId": text(&c.WFM.ClientID, optional(clientID)),
			"signature": section(fields{
				"components":      list(&c.WFM.Signature.Components, 16, component),
				"keyId":           text(&c.WFM.Signature.KeyID, optional(keyID)),
				"certificateForm": choice(&c.WFM.Signature.CertificateForm, values{"pem", "der"}),
			}),
			"tls": choice(&c.WFM.TLS, values{"1.3", "1.2"}),
			"identityService": section(fields{
				"discovery": text(&c.WFM.IdentityService.Discovery, optional(documentURL)),
				"pins":      list(&c.WFM.IdentityService.Pins, 16, pin),
				"ca":        file(&c.WFM.IdentityService.CA, optional(path)),
				"refresh":   duration(&c.WFM.IdentityService.Refresh, 5*time.Minute, 7*day),
			}),
			"limits": section(fields{
				"manifest": size(&c.WFM.Limits.Manifest, 1<<10, 64<<20),
				"document": size(&c.WFM.Limits.Document, 1<<10, 16<<20),
				"bundle":   size(&c.WFM.Limits.Bundle, 1<<10, 4<<30),
				"expanded": size(&c.WFM.Limits.Expanded, 1<<10, 16<<30),
				"entries":  number(&c.WFM.Limits.Entries, 1, 1_000_000),
				"ratio":    number(&c.WFM.Limits.Ratio, 10, 1100), // deflate cannot do better than 1032
				"names":    number(&c.WFM.Limits.Names, 64, 4096),
				"depth":    number(&c.WFM.Limits.Depth, 1, 64),
			}),
			"strict": flag(&c.WFM.Strict),
			"git": section(fields{
				"branch":      text(&c.WFM.Git.Branch, branch),
				"path":        text(&c.WFM.Git.Path, optional(treePath)),
				"token":       file(&c.WFM.Git.Token, optional(secret)),
				"certificate": file(&c.WFM.Git.Certificate, optional(path)),
				"key":         file(&c.WFM.Git.Key, optional(secret)),
				"report": section(fields{
					"branch": text(&c.WFM.Git.Report.Branch, optional(branch)),
					"path":   text(&c.WFM.Git.Report.Path, optional(treePath)),
				}),
			}),
			"reports": text(&c.WFM.Reports, optional(baseURL)),
		}),
		"poll": section(fields{
			"interval": duration(&c.Poll.Interval, time.Second, 31*day),
			"windows":  windows(&c.Poll.Windows),
			"downtime": windows(&c.Poll.Downtime),
		}),
		"provision": section(fields{
			"from": replaced(&c.Provision.From, 8, path),
		}),
		"state": section(fields{
			"dir":     text(&c.State.Dir, path),
			"run":     text(&c.State.Run, path),
			"reserve": size(&c.State.Reserve, 0, maxBytes),
		}),
		"control": section(fields{
			"group": text(&c.Control.Group, optional(group)),
		}),
		"runtime": section(fields{
			"containerd":  text(&c.Runtime.Containerd, containerd),
			"namespace":   text(&c.Runtime.Namespace, namespace),
			"settle":      duration(&c.Runtime.Settle, 0, day),
			"maxTimeout":  duration(&c.Runtime.MaxTimeout, time.Second, day),
			"publish":     choice(&c.Runtime.Publish, values{"firewall", "open"}),
			"preload":     text(&c.Runtime.Preload, optional(path)),
			"pulls":       number(&c.Runtime.Pulls, 1, 16),
			"minPullRate": size(&c.Runtime.MinPullRate, 0, maxBytes),
			"logs": section(fields{
				"dir":     text(&c.Runtime.Logs.Dir, optional(path)),
				"maxSize": size(&c.Runtime.Logs.MaxSize, 4<<10, 1<<40),
				"maxFile": number(&c.Runtime.Logs.MaxFile, 1, 100),
			}),
		}),
		"policy": section(fields{
			"approval":    approval(&c.Policy.Rules.Approval),
			"order":       order(&c.Policy.Order),
			"windows":     windows(&c.Policy.Rules.Windows),
			"rollback":    rollback(&c.Policy.Rules.Rollback),
			"hook":        hook(&c.Policy.Rules.Hook),
			"keys":        list(&c.Policy.Keys, 16, path),
			"imageKeys":   table(&c.Policy.ImageKeys, images, imageKeys),
			"allow":       allow(&c.Policy.Allow),
			"deployments": items(&c.Policy.Overrides, 64, override),
		}),
		"reports": section(fields{
			"running":  flag(&c.Reports.Running),
			"grace":    duration(&c.Reports.Grace, time.Second, day),
			"interval": duration(&c.Reports.Interval, 0, 31*day),
			"reasons":  flag(&c.Reports.Reasons),
		}),
		"registries": table(&c.Registries, host, oneRegistry),
		"metrics": section(fields{
			"listen":   text(&c.Metrics.Listen, optional(listenAddress)),
			"otlp":     text(&c.Metrics.OTLP, optional(ownCollector)),
			"interval": duration(&c.Metrics.Interval, 10*time.Second, day),
		}),
		"collector": section(fields{
			"http":        text(&c.Collector.HTTP, optional(collector)),
			"grpc":        text(&c.Collector.GRPC, optional(collector)),
			"protocol":    choice(&c.Collector.Protocol, values{"grpc", "http/protobuf"}),
			"certificate": text(&c.Collector.Certificate, optional(path)),
		}),
		"log": section(fields{
			"level":  level(&c.Log.Level),
			"format": choice(&c.Log.Format, values{"text", "json"}),
		}),
	}
}

// enrolled are the sections that a provisioning file may have: who the device is,
// and who it listens to. What that one may do here stays with the configuration.
func (c *Config) enrolled() fields {
	all := c.schema()
	return fields{"device": all["device"], "wfm": all["wfm"], "poll": all["poll"], "registries": all["registries"]}
}

func oneRegistry(r *Registry) field {
	all := section(fields{
		"plainHTTP":   flag(&r.PlainHTTP),
		"ca":          file(&r.CA, optional(path)),
		"credentials": file(&r.Credentials, optional(path)),
		"mirrors":     list(&r.Mirrors, 64, host),
		"insecure":    flag(&r.Insecure),
		"certificate": file(&r.Certificate, optional(path)),
		"key":         file(&r.Key, optional(secret)),
	})
	return func(into *reader, key string, n *yaml.Node) {
		all(into, key, n)
		if (r.Certificate == "") != (r.Key == "") {
			into.mistake(n, key, "certificate and key are needed together")
		}
	}
}
