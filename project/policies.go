package project

import "github.com/skein-rl/skein/cluster"

// tellPolicies adds to a worker's heartbeat how it came by its policies.
func tellPolicies(info *cluster.NodeInfo, s cluster.PolicyStats) {
	if info.Metrics == nil {
		info.Metrics = map[string]float64{}
	}
	info.Metrics["policies_from_workers"] = float64(s.FromWorkers)
	info.Metrics["policies_from_replay"] = float64(s.FromReplay)
	info.Metrics["policies_passed_on"] = float64(s.Served)
	for why, n := range s.Fallbacks {
		info.Metrics["policies_fell_back_"+why] = float64(n)
	}
}
