//go:build xla

package xla

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unsafe"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/gomlx/go-xla/pkg/types/dtypes"
)

// device is one of a PJRT client's devices.
type device struct {
	client *pjrt.Client
	at     *pjrt.Device
	index  int // among those in use
	log    *slog.Logger
	name   string // cpu, cuda, ...
	elem   string // f32 or bf16: weights, caches and operands of products
	limits limits
	accel  bool // not a CPU
}

// openDevices makes one client and gives its first devices.
func openDevices(o Options) ([]*device, error) {
	file, err := findPlugin(o.Plugin, o.Device)
	if err != nil {
		return nil, err
	}
	defer limitThreads(o.Threads)()
	options := pjrt.NamedValuesMap{}
	switch o.Device {
	case "cpu":
		options["cpu_device_count"] = int64(o.Devices)
	case "cuda":
		defer cudaEnvironment(file)()
		// Memory is taken as it is needed: other processes may use the card too.
		options["allocator"], options["preallocate"], options["memory_fraction"] = "bfc", false, float32(0.9)
	}
	plugin, err := pjrt.GetPlugin(file)
	if err != nil {
		return nil, fmt.Errorf("xla: load plugin %s for device %q: %w", file, o.Device, err)
	}
	client, err := plugin.NewClient(options)
	if err != nil {
		return nil, fmt.Errorf("xla: open device %q with plugin %s: %w", o.Device, file, err)
	}
	found := client.AddressableDevices()
	if len(found) < o.Devices {
		return nil, errors.Join(fmt.Errorf("xla: devices %d: plugin %s has %d of kind %q", o.Devices, file, len(found), o.Device), client.Destroy())
	}
	var devs []*device
	for i, at := range found[:o.Devices] {
		devs = append(devs, &device{client: client, at: at, index: i, log: o.Logger, name: o.Device, elem: o.Dtype, limits: limitsOf(o.Device), accel: o.Device != "cpu"})
	}
	return devs, nil
}

// program is a compiled StableHLO module.
type program struct {
	name   string
	exec   *pjrt.LoadedExecutable
	donate []int
}

// compile builds the emitter's module for every device of the client; aliased
// arguments are donated.
func (d *device) compile(name string, e *emitter, results []value) (*program, error) {
	start := time.Now()
	exec, err := d.client.Compile().WithStableHLO(e.module(results)).Done()
	if err != nil {
		return nil, fmt.Errorf("xla: compile %s: %w", name, err)
	}
	p := &program{name: name, exec: exec}
	for i := range e.args {
		if _, ok := e.alias[i]; ok {
			p.donate = append(p.donate, i)
		}
	}
	d.log.Debug("xla: compiled", "program", name, "device", d.name, "duration", time.Since(start))
	return p, nil
}

func (d *device) emitter() *emitter {
	return &emitter{alias: map[int]int{}, accel: d.accel}
}

// run executes on this device, where the arguments are, and returns the results;
// donated arguments are gone afterwards.
func (d *device) run(p *program, args []*pjrt.Buffer) ([]*pjrt.Buffer, error) {
	out, err := p.exec.Execute(args...).OnDevice(d.at).Donate(p.donate...).Done()
	if err != nil {
		return nil, fmt.Errorf("xla: run %s: %w", p.name, err)
	}
	return out, nil
}

func (p *program) close() error {
	return p.exec.Destroy()
}

var elemTypes = map[string]dtypes.DType{
	"f32": dtypes.Float32, "bf16": dtypes.BFloat16, "i32": dtypes.Int32, "ui32": dtypes.Uint32, "i1": dtypes.Bool, "f64": dtypes.Float64,
}

func elemSize(elem string) int {
	switch elem {
	case "f64":
		return 8
	case "bf16":
		return 2
	case "i1":
		return 1
	}
	return 4
}

func count(dims []int) int {
	n := 1
	for _, d := range dims {
		n *= d
	}
	return n
}

// put moves bytes to the device.
func (d *device) put(raw []byte, elem string, dims ...int) (*pjrt.Buffer, error) {
	if want := count(dims) * elemSize(elem); len(raw) != want {
		return nil, fmt.Errorf("xla: transfer of %d bytes as %s: %d expected", len(raw), tensorType(elem, dims), want)
	}
	b, err := d.client.BufferFromHost().FromRawData(raw, elemTypes[elem], dims).ToDevice(d.at).Done()
	if err != nil {
		return nil, fmt.Errorf("xla: transfer %s: %w", tensorType(elem, dims), err)
	}
	return b, nil
}

func bytesOf[T any](x []T) []byte {
	var z T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(z)))
}

func (d *device) putF32(x []float32, dims ...int) (*pjrt.Buffer, error) {
	return d.put(bytesOf(x), "f32", dims...)
}

func (d *device) putI32(x []int32, dims ...int) (*pjrt.Buffer, error) {
	return d.put(bytesOf(x), "i32", dims...)
}

func (d *device) putF64(x []float64, dims ...int) (*pjrt.Buffer, error) {
	return d.put(bytesOf(x), "f64", dims...)
}

func (d *device) putBool(x []bool, dims ...int) (*pjrt.Buffer, error) {
	return d.put(bytesOf(x), "i1", dims...)
}

// putElem stores f32 values in the device's compute type.
func (d *device) putElem(x []float32, dims ...int) (*pjrt.Buffer, error) {
	if d.elem == "f32" {
		return d.putF32(x, dims...)
	}
	h := make([]uint16, len(x))
	for i, v := range x {
		h[i] = bf16(v)
	}
	return d.put(bytesOf(h), "bf16", dims...)
}

// zeros is a tensor of zeros in the compute type.
func (d *device) zeros(dims ...int) (*pjrt.Buffer, error) {
	return d.put(make([]byte, count(dims)*elemSize(d.elem)), d.elem, dims...)
}

// get reads a 32-bit buffer of known length back.
func get[T int32 | uint32 | float32](b *pjrt.Buffer, n int) ([]T, error) {
	out := make([]T, n)
	if n == 0 {
		return out, nil
	}
	if err := b.ToHost(bytesOf(out)); err != nil {
		return nil, fmt.Errorf("xla: read back: %w", err)
	}
	return out, nil
}

// free destroys buffers early: the collector doesn't see their size.
func free(bufs ...*pjrt.Buffer) {
	for _, b := range bufs {
		if b != nil {
			// A failed destroy leaves nothing to do: the client frees the rest.
			_ = b.Destroy()
		}
	}
}
