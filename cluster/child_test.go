package cluster

const childEnv = "SKEIN_CLUSTER_CHILD"

func runChild() int { return 0 }
