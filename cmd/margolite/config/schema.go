package config

import "time"

// schema is the format of the file: which keys there are, of which type, which
// values are possible, and where each of them goes.
func (c *Config) schema() field {
	return section(fields{
		"device": section(fields{
			"id":           text(&c.Device.ID, optional(deviceID)),
			"vendor":       text(&c.Device.Vendor, line),
			"modelNumber":  text(&c.Device.ModelNumber, line),
			"serialNumber": text(&c.Device.SerialNumber, line),
			"labels":       labels(&c.Device.Labels),
		}),
		"wfm": section(fields{
			"url":         text(&c.WFM.URL, optional(baseURL)),
			"revision":    choice(&c.WFM.Revision, values{"1.0.0-rc.3"}, values{"1.0.0-rc.2"}),
			"certificate": text(&c.WFM.Certificate, path),
			"key":         text(&c.WFM.Key, path),
			"trustBundle": text(&c.WFM.TrustBundle, trustBundle),
		}),
		"poll": section(fields{
			"interval": duration(&c.Poll.Interval, time.Second),
			"windows":  laterList,
			"downtime": laterList,
		}),
		"state": section(fields{
			"dir": text(&c.State.Dir, path),
			"run": text(&c.State.Run, path),
		}),
		"runtime": section(fields{
			"containerd": text(&c.Runtime.Containerd, containerd),
			"namespace":  text(&c.Runtime.Namespace, namespace),
			"settle":     duration(&c.Runtime.Settle, 0),
			"publish":    choice(&c.Runtime.Publish, values{"firewall", "open"}, nil),
			"preload":    text(&c.Runtime.Preload, optional(path)),
			"pulls":      number(&c.Runtime.Pulls, 1, 16),
			"logs": section(fields{
				"dir":     text(&c.Runtime.Logs.Dir, optional(path)),
				"maxSize": size(&c.Runtime.Logs.MaxSize, 4<<10),
				"maxFile": number(&c.Runtime.Logs.MaxFile, 1, 100),
			}),
		}),
		"policy": section(fields{
			"approval": choice(&c.Policy.Approval, values{"none"}, values{"updates", "all"}),
			"windows":  laterList,
			"allow":    laterMap,
		}),
		"registries": table(&c.Registries, host, func(r *Registry) field {
			return section(fields{
				"plainHTTP":   flag(&r.PlainHTTP),
				"ca":          text(&r.CA, optional(path)),
				"credentials": text(&r.Credentials, optional(path)),
				"mirrors":     list(&r.Mirrors, host),
				"insecure":    flag(&r.Insecure),
			})
		}),
		"log": section(fields{
			"level":  level(&c.Log.Level),
			"format": choice(&c.Log.Format, values{"text", "json"}, nil),
		}),
	})
}
