package wfm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/margolite/margolite/agent/margo"
)

// PostStatus reports the state of a deployment. The body is a marshalled margo.Status, and is
// sent in the form of the dialect.
func (c *Client) PostStatus(ctx context.Context, deploymentID string, body []byte) error {
	op := "post status of deployment " + deploymentID
	if c.options.Dialect != margo.RC3 {
		status, err := margo.ParseStatus(body)
		if err == nil {
			if c.Habits().ClientIDAsDevice {
				status.DeviceID = c.ClientID()
			}
			body, err = status.MarshalFor(c.options.Dialect, c.Habits().CapitalisedStates)
		}
		if err != nil {
			return fmt.Errorf("cannot %s: %w", op, err)
		}
	}
	forms := c.statusForms(deploymentID)
	used, err := c.report(ctx, request{op: op, body: body}, forms)
	if err == nil || isUnfit(err) { // only the right path answers so
		c.statusForm.CompareAndSwap(0, int32(used+1))
	}
	return err
}

// PutCapabilities reports what a device offers. The body is marshalled margo.Capabilities, and is
// sent in the form of the dialect. The slashes of a hierarchical device id stay slashes.
//
// Before rc.3 some WFMs take the client id for the device's: one that refuses the device's id is
// sent the report under that one.
func (c *Client) PutCapabilities(ctx context.Context, deviceID string, body []byte) error {
	if !c.options.Dialect.Signed() || strings.Contains(deviceID, "/") {
		return c.putCapabilities(ctx, deviceID, body)
	}
	first, second := deviceID, c.ClientID()
	if c.Habits().ClientIDAsDevice {
		first, second = second, first
	}
	err := c.putCapabilities(ctx, first, body)
	if second != "" && mindsDeviceID(err) && c.putCapabilities(ctx, second, body) == nil {
		c.learn(func(h *Habits) { h.ClientIDAsDevice = second == c.ClientID() })
		return nil
	}
	return err
}

func isUnfit(err error) bool {
	status := statusOf(err)
	return status == http.StatusBadRequest || status == http.StatusUnprocessableEntity
}

func mindsDeviceID(err error) bool {
	if !isUnfit(err) {
		return false
	}
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "device id") || strings.Contains(text, "deviceid") || strings.Contains(text, "properties.id")
}

// putCapabilities reports capabilities under the device id, whatever they contain.
func (c *Client) putCapabilities(ctx context.Context, id string, body []byte) error {
	op := "put capabilities of device " + id
	if c.options.Dialect != margo.RC3 {
		capabilities, err := margo.ParseCapabilities(body)
		if err == nil {
			capabilities.Properties.ID = id
			body, err = capabilities.MarshalFor(c.options.Dialect)
		}
		if err != nil {
			return fmt.Errorf("cannot %s: %w", op, err)
		}
	}
	forms := c.capabilityForms(id)
	used, err := c.report(ctx, request{op: op, body: body, own: !strings.Contains(id, "/")}, forms)
	if err == nil {
		c.fresh.Store(false)
		c.withoutID.Store(forms[used].resource == allCapabilities)
	}
	return err
}

// DeleteCapabilities tells that a device is gone (CAP-06, GW-04). An unknown one is no error.
func (c *Client) DeleteCapabilities(ctx context.Context, deviceID string) error {
	op := "delete capabilities of device " + deviceID
	if c.options.Dialect == margo.RC1 {
		return fmt.Errorf("cannot %s: revision %s has no such request: %w", op, c.options.Dialect, errors.ErrUnsupported)
	}
	_, err := c.report(ctx, request{op: op}, []form{{http.MethodDelete, "capabilities/" + deviceID}}) // no body
	if statusOf(err) == http.StatusNotFound && !errors.Is(err, ErrClientUnknown) {
		return nil
	}
	return err
}

// report sends a document in the first form that the WFM knows, and returns its index. Any 2xx is
// success, whatever its body says, unless it is a page (isPage). If the WFM knows no form,
// the answer to the first is the error.
func (c *Client) report(ctx context.Context, r request, forms []form) (used int, err error) {
	var first error
	for i, f := range forms {
		r.method, r.resource = f.method, f.resource
		_, err = c.do(ctx, r)
		if !otherForm(f, err) {
			return i, err
		}
		first = cmp.Or(first, err)
	}
	return 0, first
}
