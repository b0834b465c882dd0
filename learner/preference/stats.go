package preference

// PairStats are sums over pairs. Sums of micro-batches merge, so that a metric
// never depends on the partition.
type PairStats struct {
	Pairs                        float64
	ChosenReward, RejectedReward float64 // β log(π/π_ref)
	Accurate                     float64 // pairs with the chosen reward above the rejected
	ChosenLogP, RejectedLogP     float64
	ChosenTokens, RejectedTokens float64
	// Parts are the step's shares of each loss type before its weight, in the
	// order of the configuration, the sft term of RPOAlpha last.
	Parts []float64
}

func newPairStats(c DPOConfig) PairStats { return PairStats{Parts: make([]float64, len(c.parts()))} }

func (s *PairStats) add(c DPOConfig, w, l side) {
	s.Pairs++
	s.ChosenReward += c.Beta * w.ratio
	s.RejectedReward += c.Beta * l.ratio
	if w.ratio > l.ratio {
		s.Accurate++
	}
	s.ChosenLogP += w.lp
	s.RejectedLogP += l.lp
	s.ChosenTokens += w.n
	s.RejectedTokens += l.n
}

// Merge adds another micro-batch of the same configuration.
func (s *PairStats) Merge(o PairStats) {
	s.Pairs += o.Pairs
	s.ChosenReward += o.ChosenReward
	s.RejectedReward += o.RejectedReward
	s.Accurate += o.Accurate
	s.ChosenLogP += o.ChosenLogP
	s.RejectedLogP += o.RejectedLogP
	s.ChosenTokens += o.ChosenTokens
	s.RejectedTokens += o.RejectedTokens
	if s.Parts == nil {
		s.Parts = make([]float64, len(o.Parts))
	}
	for i, x := range o.Parts {
		s.Parts[i] += x
	}
}

// Metrics names the means as TRL does; a mixture's parts are loss/<type>.
// Without pairs there are none.
func (s PairStats) Metrics(c DPOConfig) map[string]float64 {
	m := map[string]float64{}
	if s.Pairs == 0 {
		return m
	}
	m["rewards/chosen"] = s.ChosenReward / s.Pairs
	m["rewards/rejected"] = s.RejectedReward / s.Pairs
	m["rewards/margins"] = (s.ChosenReward - s.RejectedReward) / s.Pairs
	m["rewards/accuracies"] = s.Accurate / s.Pairs
	m["logps/chosen"] = s.ChosenLogP / s.Pairs
	m["logps/rejected"] = s.RejectedLogP / s.Pairs
	m["lengths/chosen"] = s.ChosenTokens / s.Pairs
	m["lengths/rejected"] = s.RejectedTokens / s.Pairs
	if parts := c.parts(); len(parts) > 1 {
		for i, p := range parts {
			m["loss/"+p.name] = s.Parts[i]
		}
	}
	return m
}

// UnpairedStats are sums over rows with a verdict; they merge likewise.
type UnpairedStats struct {
	Desirable, Undesirable             float64 // rows
	DesirableReward, UndesirableReward float64 // β log(π/π_ref)
	DesirableLogP, UndesirableLogP     float64
	DesirableLoss, UndesirableLoss     float64 // shares of the step's loss
	Weight                             float64 // sum of row weights
}

func (s *UnpairedStats) add(u Unpaired, reward, lp, loss float64) {
	s.Weight += u.weight()
	if u.Desirable {
		s.Desirable++
		s.DesirableReward += reward
		s.DesirableLogP += lp
		s.DesirableLoss += loss
		return
	}
	s.Undesirable++
	s.UndesirableReward += reward
	s.UndesirableLogP += lp
	s.UndesirableLoss += loss
}

// Merge adds another micro-batch.
func (s *UnpairedStats) Merge(o UnpairedStats) {
	s.Desirable += o.Desirable
	s.Undesirable += o.Undesirable
	s.DesirableReward += o.DesirableReward
	s.UndesirableReward += o.UndesirableReward
	s.DesirableLogP += o.DesirableLogP
	s.UndesirableLogP += o.UndesirableLogP
	s.DesirableLoss += o.DesirableLoss
	s.UndesirableLoss += o.UndesirableLoss
	s.Weight += o.Weight
}

// Metrics names the means as TRL does. A class without rows has none, and the
// margin needs both.
func (s UnpairedStats) Metrics() map[string]float64 {
	m := map[string]float64{}
	if s.Desirable > 0 {
		m["rewards/chosen"] = s.DesirableReward / s.Desirable
		m["logps/chosen"] = s.DesirableLogP / s.Desirable
	}
	if s.Undesirable > 0 {
		m["rewards/rejected"] = s.UndesirableReward / s.Undesirable
		m["logps/rejected"] = s.UndesirableLogP / s.Undesirable
	}
	if s.Desirable > 0 && s.Undesirable > 0 {
		m["rewards/margins"] = m["rewards/chosen"] - m["rewards/rejected"]
	}
	if n := s.Desirable + s.Undesirable; n > 0 {
		m["rows/desirable"] = s.Desirable
		m["rows/undesirable"] = s.Undesirable
		m["rows/weight_mean"] = s.Weight / n
	}
	return m
}
