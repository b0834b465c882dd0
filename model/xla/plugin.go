//go:build xla

package xla

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// envMu guards the environment while a plugin or a client reads it.
var envMu sync.Mutex

// limitThreads sets the variable that a new CPU client sizes its thread pool by;
// the returned function restores it.
func limitThreads(n int) func() {
	if n == 0 {
		return func() {}
	}
	envMu.Lock()
	restore := setEnv("NPROC", strconv.Itoa(n))
	return func() {
		restore()
		envMu.Unlock()
	}
}

// setEnv sets a variable; the returned function restores it. Setenv fails only
// on a malformed name or value.
func setEnv(name, value string) func() {
	old, was := os.LookupEnv(name)
	_ = os.Setenv(name, value)
	return func() {
		if was {
			_ = os.Setenv(name, old)
		} else {
			_ = os.Unsetenv(name)
		}
	}
}

// cudaEnvironment prepares what loading a CUDA plugin reads: go-xla's own search
// for NVIDIA's libraries is off (it knows one layout only; the plugin finds them
// by its own run path), and XLA is told where the CUDA tools of the Python
// packages lie, unless XLA_FLAGS says so. The flags are read at the first
// compilation too, so they stay.
func cudaEnvironment(plugin string) func() {
	const flag = "--xla_gpu_cuda_data_dir="
	if flags := os.Getenv("XLA_FLAGS"); !strings.Contains(flags, flag) {
		packages := filepath.Dir(filepath.Dir(filepath.Dir(plugin)))
		for _, dir := range []string{"cu13", "cuda_nvcc"} {
			at := filepath.Join(packages, "nvidia", dir)
			if fi, err := os.Stat(at); err == nil && fi.IsDir() {
				_ = os.Setenv("XLA_FLAGS", strings.TrimSpace(flags+" "+flag+at))
				break
			}
		}
	}
	return setEnv("GOPJRT_CUDA_CHECKS", "0")
}

// findPlugin resolves the plugin's file. where is a file, a list of folders, or
// empty for the environment's.
func findPlugin(where, dev string) (string, error) {
	source := fmt.Sprintf("plugin %q", where)
	if where == "" {
		where = os.Getenv(PluginEnv)
		source = PluginEnv
		if where == "" {
			return "", fmt.Errorf("%w for device %q: %s is not set; run make plugin and set it to the folder of pjrt_c_api_%s_plugin.so",
				ErrNoPlugin, dev, PluginEnv, dev)
		}
	}
	patterns := []string{"pjrt_c_api_" + dev + "_plugin.so", "pjrt_c_api_" + dev + "_plugin.dylib", "pjrt[-_]plugin[-_]" + dev + ".so", "xla_" + dev + "*_plugin.so"}
	for dir := range strings.SplitSeq(where, ":") {
		if dir == "" {
			continue
		}
		if fi, err := os.Stat(dir); err == nil && !fi.IsDir() {
			return filepath.Abs(dir)
		}
		for _, p := range patterns {
			if found, _ := filepath.Glob(filepath.Join(dir, p)); len(found) > 0 {
				return filepath.Abs(found[0])
			}
		}
	}
	return "", fmt.Errorf("%w for device %q: %s=%s has no pjrt_c_api_%s_plugin.so; run make plugin, or point %s at a folder that has it",
		ErrNoPlugin, dev, source, where, dev, PluginEnv)
}
