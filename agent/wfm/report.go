package wfm

import (
	"context"
	"net/http"
)

// PostStatus reports the state of a deployment; the body is margo.Status as
// marshalled.
func (c *Client) PostStatus(ctx context.Context, deploymentID string, body []byte) error {
	return c.report(ctx, request{
		op:     "post status of deployment " + deploymentID,
		method: http.MethodPost,
		url:    c.endpoint("api/v1/deployments/" + deploymentID + "/status"),
		body:   body,
	})
}

// PutCapabilities reports what a device offers; the body is margo.Capabilities
// as marshalled. The slashes of a hierarchical device id stay slashes.
func (c *Client) PutCapabilities(ctx context.Context, deviceID string, body []byte) error {
	return c.report(ctx, request{
		op:     "put capabilities of device " + deviceID,
		method: http.MethodPut,
		url:    c.endpoint("api/v1/capabilities/" + deviceID),
		body:   body,
	})
}

// report sends a document. Any 2xx is success, whatever its body says.
func (c *Client) report(ctx context.Context, r request) error {
	r.header = http.Header{
		"Content-Type":    {"application/json"},
		"Accept-Encoding": {"gzip"},
	}
	_, err := c.do(ctx, r)
	return err
}
