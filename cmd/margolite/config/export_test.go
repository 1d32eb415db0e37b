package config

// Parse reads the content of a file that no enrolment comes on top of.
func Parse(name string, data []byte) (*Config, error) {
	c, _, err := parse(name, data)
	if err != nil {
		return nil, err
	}
	c.WFM.dropUnused()
	return c, nil
}
