package network

// WriteHosts is BeginHosts with the waiting.
func (n *Networks) WriteHosts(s Sandbox, hosts []Host) error {
	wait, err := n.BeginHosts(s, hosts)
	if err == nil {
		err = wait()
	}
	return err
}
