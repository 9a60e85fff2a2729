// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

/// The native module of Thinwire for Python, which exposes the C++ library
/// without additional logic. Each item does the same as the C++ item of its
/// name. The build writes the types of all items into the package's _core.pyi,
/// by nanobind.stubgen.
///
/// An array is any object with DLPack or the buffer protocol that is
/// one-dimensional, contiguous and on the CPU. Parameters and gradients may
/// also be a tuple of two arrays, which counts as one: the first of 16 bits and
/// the second of fp32. Calls that can wait for other ranks release the GIL.
/// Failures of the library are raised as the classes of thinwire.errors.
namespace thinwire::config {
struct Config;
}

namespace thinwire::python {

namespace nb = nanobind;
using namespace nb::literals;

void bind_errors(nb::module_& module);
void bind_log(nb::module_& module);
void bind_machine(nb::module_& module);
void bind_communicator(nb::module_& module);
void bind_layout(nb::module_& module);
void bind_codec(nb::module_& module);
void bind_means(nb::module_& module);
void bind_low_bit_reduce_scatter(nb::module_& module);
void bind_config(nb::module_& module);
void bind_keywords(nb::class_<config::Config>& kind);
void bind_reports(nb::module_& module);
void bind_notices(nb::module_& module);
void bind_optimizer(nb::module_& module);
void bind_checkpoint_options(nb::module_& module);
void bind_checkpoint_reports(nb::module_& module);
void bind_engine(nb::module_& module);
void bind_checkpoint(nb::module_& module);
void bind_commands(nb::module_& module);

}  // namespace thinwire::python
