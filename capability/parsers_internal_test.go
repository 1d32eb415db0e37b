package capability

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/margolite/margolite/test/expect"
)

// What the kernel tells in text, as processors and the device tree have it.
func FuzzTexts(f *testing.F) {
	f.Add("processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 7\nCPU part\t: 0xc08\n", "rockchip,rk3588-mali\x00arm,mali-valhall-csf\x00", "imx219 10-0010", "0-3,5")
	f.Add("model name: ARMv6\n", "qcom,adreno-630.2\x00qcom,adreno\x00", "nv_imx219", "65535-0")
	f.Add(":", "img,\x00,\x00arm,mali-\x00arm,ethos-", "ov", ",")
	f.Fuzz(func(t *testing.T, cpuinfo, compatible, name, list string) {
		if v := variant("arm", cpuinfo); len(v) > 2 {
			t.Errorf("variant %q", v)
		}
		if texts := strings.Split(strings.TrimRight(compatible, "\x00"), "\x00"); len(texts) > 0 {
			vendor, model, _ := fromTree(texts)
			expect.True(t, vendor != "" || model == "" || strings.Contains(compatible, ","), "model %q without a vendor", model)
		}
		if vendor, model := sensor(name); (vendor == "") != (model == "") || len(model) > 32 {
			t.Errorf("%q is %q of %q", name, model, vendor)
		}
		if n := countList(list); n < 0 || n > 1<<16*len(list) {
			t.Errorf("%q has %d members", list, n)
		}
		if s := shown(name); len(s) > 256 || !utf8.ValidString(s) {
			t.Errorf("%q is shown as %q", name, s)
		}
	})
}
