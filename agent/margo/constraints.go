package margo

// DeviceConstraints say what a device must offer to host a deployment (AD-11, AD-12).
type DeviceConstraints struct {
	CPU     *CPURequirement
	Memory  Quantity          // 0: no requirement
	Storage Quantity          // 0: no requirement
	Rules   []EligibilityRule // alternatives; none: no requirement
}

// CPURequirement has to be met by a single entry of the device's CPUs (CAP-12).
type CPURequirement struct {
	Cores         float64
	Architectures []string // alternatives; empty: any
}

// EligibilityRule is met when all its selectors are.
type EligibilityRule struct {
	Property Selector // over Capabilities.Properties, keys are JSON Pointers
	Label    Selector // over Capabilities.Labels, keys are label names
}

// Selector is met when all its expressions are.
type Selector []MatchExpression

// MatchExpression compares what a key refers to.
type MatchExpression struct {
	Key      string
	Operator string   // see met; an unknown one is never met
	Values   []Value  // for In, NotIn, Gt, Lt
	Items    Selector // for ContainsAll, ContainsAny; keys are relative to the element
}

// constraints reads the constraints. What could be misread as less than the WFM asked for refuses
// the document; an expression that cannot be met does not.
func (r *reader) constraints(n node) *DeviceConstraints {
	if !r.isOptional(object, "AD-11", n) {
		return nil
	}
	r.exact(n, "capacityRequirements", "eligibilityRules")
	c := &DeviceConstraints{}
	if capacity := n.member("capacityRequirements"); r.isOptional(object, "AD-12", capacity) {
		r.exact(capacity, "cpu", "memory", "storage")
		c.CPU = r.cpuRequirement(capacity.member("cpu"))
		c.Memory = r.requiredQuantity(capacity.member("memory"))
		c.Storage = r.requiredQuantity(capacity.member("storage"))
	}
	if rules := n.member("eligibilityRules"); r.isOptional(list, "AD-11", rules) {
		rules.each(func(n node) {
			if !r.is(object, "AD-11", n) {
				return
			}
			r.exact(n, "propertySelector", "labelSelector")
			c.Rules = append(c.Rules, EligibilityRule{
				Property: r.selector(n.member("propertySelector")),
				Label:    r.selector(n.member("labelSelector")),
			})
		})
	}
	return c
}

func (r *reader) cpuRequirement(n node) *CPURequirement {
	if !r.isOptional(object, "AD-12", n) {
		return nil
	}
	r.exact(n, "cores", "architectures")
	cpu := &CPURequirement{Cores: r.float("AD-12", n.member("cores"))}
	if cpu.Cores < 0 {
		r.refuse("AD-12", n.member("cores"), "must not be negative")
	}
	if architectures := n.member("architectures"); r.isOptional(list, "AD-12", architectures) {
		architectures.each(func(n node) {
			cpu.Architectures = append(cpu.Architectures, r.word("AD-12", n)) // any name
		})
	}
	return cpu
}

func (r *reader) requiredQuantity(n node) Quantity {
	if !n.given() {
		return 0
	}
	quantity, err := ParseQuantity(r.word("AD-12", n))
	if err != nil {
		r.refuse("AD-12", n, "%s", err)
	}
	return quantity
}

func (r *reader) selector(n node) (s Selector) {
	if !r.isOptional(object, "AD-11", n) {
		return nil
	}
	r.exact(n, "matchExpressions")
	if expressions := n.member("matchExpressions"); r.is(list, "AD-11", expressions) {
		expressions.each(func(n node) {
			if r.is(object, "AD-11", n) {
				s = append(s, r.matchExpression(n))
			}
		})
	}
	return s
}

func (r *reader) matchExpression(n node) MatchExpression {
	r.exact(n, "key", "operator", "values", "itemSelector")
	e := MatchExpression{
		Key:      r.word("AD-11", n.member("key")),
		Operator: r.word("AD-11", n.member("operator")),
		Items:    r.selector(n.member("itemSelector")),
	}
	if e.Operator == "ContainersAny" { // as one table of the specification has it
		e.Operator = "ContainsAny"
	}
	if values := n.member("values"); r.isOptional(list, "AD-11", values) {
		values.each(func(n node) {
			e.Values = append(e.Values, r.value(n))
		})
	}
	return e
}
