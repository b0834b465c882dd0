package cluster

// StoreDir is the folder of a node's storage inside Config.Dir, for tools that
// look into a stopped node with replay.OpenLocal.
const StoreDir = dirStore
