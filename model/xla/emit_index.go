//go:build xla

package xla

import "slices"

// Operations that read and write tensors at indices known at run time.

// dynamicSlice reads a window of the given sizes at start (i32 scalars).
func (e *emitter) dynamicSlice(a value, start []value, sizes ...int) value {
	o := e.fresh(a.elem, sizes...)
	e.linef("%s = stablehlo.dynamic_slice %s, %s, sizes = %s : (%s, %s) -> %s",
		o.name, a.name, names(start), intList(sizes), a.typ(), types(start), o.typ())
	return o
}

// dynamicUpdate writes u into a at start (i32 scalars).
func (e *emitter) dynamicUpdate(a, u value, start ...value) value {
	o := e.fresh(a.elem, a.dims...)
	e.linef("%s = stablehlo.dynamic_update_slice %s, %s, %s : (%s, %s, %s) -> %s",
		o.name, a.name, u.name, names(start), a.typ(), u.typ(), types(start), o.typ())
	return o
}

// rows gathers table[ids]: [V,H] and [N] i32 give [N,H].
func (e *emitter) rows(table, ids value) value {
	o := e.fresh(table.elem, ids.dims[0], table.dims[1])
	e.linef(`%s = "stablehlo.gather"(%s, %s) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], `+
		`start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, %d>, indices_are_sorted = false} : (%s, %s) -> %s`,
		o.name, table.name, ids.name, table.dims[1], table.typ(), ids.typ(), o.typ())
	return o
}

// addRows adds u [M,H] to rows ids [M] i32 of table [N,H]; ids may repeat.
func (e *emitter) addRows(table, ids, u value) value {
	e.next++
	id := e.next
	o := e.fresh(table.elem, table.dims...)
	s := tensorType(table.elem, nil)
	e.linef(`%s = "stablehlo.scatter"(%s, %s, %s) ({`, o.name, table.name, ids.name, u.name)
	e.linef("^bb0(%%x%d: %s, %%y%d: %s):", id, s, id, s)
	e.linef("%%z%d = stablehlo.add %%x%d, %%y%d : %s", id, id, id, s)
	e.linef(`"stablehlo.return"(%%z%d) : (%s) -> ()`, id, s)
	e.linef(`}) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], `+
		`scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false} : (%s, %s, %s) -> %s`,
		table.typ(), ids.typ(), u.typ(), o.typ())
	return o
}

// setAt writes u [N, rest...] into a at the N index tuples at [N,K] i32 of a's
// axes `on` (ascending), which are distinct.
func (e *emitter) setAt(a, at, u value, on ...int) value {
	e.next++
	id := e.next
	o := e.fresh(a.elem, a.dims...)
	s := tensorType(a.elem, nil)
	var window []int
	for i := range len(a.dims) - len(on) {
		window = append(window, i+1)
	}
	e.linef(`%s = "stablehlo.scatter"(%s, %s, %s) ({`, o.name, a.name, at.name, u.name)
	e.linef("^bb0(%%x%d: %s, %%y%d: %s):", id, s, id, s)
	e.linef(`"stablehlo.return"(%%y%d) : (%s) -> ()`, id, s)
	e.linef(`}) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = %s, inserted_window_dims = %s, `+
		`scatter_dims_to_operand_dims = %s, index_vector_dim = 1>, indices_are_sorted = false, unique_indices = true} : (%s, %s, %s) -> %s`,
		intList(window), intList(on), intList(on), a.typ(), at.typ(), u.typ(), o.typ())
	return o
}

// pad adds zeros at the end of an axis until it has n.
func (e *emitter) pad(a value, axis, n int) value {
	if a.dims[axis] == n {
		return a
	}
	d := slices.Clone(a.dims)
	d[axis] = n - a.dims[axis]
	return e.concat(axis, a, e.constant(a.elem, 0, d...))
}
