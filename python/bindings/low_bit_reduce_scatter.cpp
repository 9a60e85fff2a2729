// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/low_bit_reduce_scatter.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "communicator.h"
#include "support/arrays.h"
#include "support/call.h"

namespace thinwire::python {
namespace {

using exchange::LowBitReduceScatter;

// An exchange, and the objects that it needs to live.
struct ScatterParts {
  ScatterParts(std::shared_ptr<comm::Communicator> group,
               std::size_t residual_size,
               const std::vector<std::vector<LowBitReduceScatter::Piece>>& all,
               const exchange::LowBitMeanOptions& options)
      : comm(std::move(group)),
        exchange(*comm, pool, residual_size, all, options) {}

  std::shared_ptr<comm::Communicator> comm;
  ThreadPool pool{};
  LowBitReduceScatter exchange;
  OneCaller caller{};
};

using ScatterHandle = Handle<ScatterParts>;
// from, to, residual, size, owner
using PieceTuple =
    std::tuple<std::size_t, std::size_t, std::size_t, std::size_t, int>;

void construct_scatter(ScatterHandle* self, const CommunicatorHandle& comm,
                       std::size_t residual_size,
                       const std::vector<std::vector<PieceTuple>>& parts,
                       int bits, bool bf16) {
  const exchange::LowBitMeanOptions options{
      .bits = bits,
      .residual_dtype = bf16 ? DType::kBFloat16 : DType::kFloat32};
  std::vector<std::vector<LowBitReduceScatter::Piece>> all;
  for (const auto& given : parts) {
    all.emplace_back();
    for (const auto& [from, to, residual, size, owner] : given)
      all.back().push_back({from, to, residual, size, owner});
  }
  new (self) ScatterHandle(
      "exchange",
      std::make_shared<ScatterParts>(comm.get(), residual_size, all, options));
}

bool average_part(const ScatterHandle& self, std::size_t part,
                  nb::handle gradient, nb::handle result, double loss_scale) {
  const ConstArray from(gradient, "gradient");
  const Array to(result, "result");
  return call(self, "average", [&](ScatterParts& parts) {
    return parts.exchange.average(part, from.view(), to.view(), loss_scale);
  });
}

nb::object error_of(const ScatterHandle& self) {
  return to_python(call(self, "error", [](ScatterParts& parts) {
    return copy_of(parts.exchange.error());
  }));
}

void load_error(const ScatterHandle& self, nb::handle error) {
  const ConstArray given(error, "error");
  call(self, "load_error",
       [&](ScatterParts& parts) { parts.exchange.load_error(given.view()); });
}

}  // namespace

void bind_low_bit_reduce_scatter(nb::module_& module) {
  nb::class_<ScatterHandle>(module, "LowBitReduceScatter",
                            nb::is_weak_referenceable())
      .def("__init__", &construct_scatter, "comm"_a, "residual_size"_a,
           "parts"_a, "bits"_a, "bf16_residual"_a)
      .def("average", &average_part, "part"_a, "gradient"_a, "result"_a,
           "loss_scale"_a = 1.0)
      .def("error", &error_of)
      .def("load_error", &load_error, "error"_a)
      .def_prop_ro("bytes_per_pass",
                   [](const ScatterHandle& self) {
                     return self.look().exchange.bytes_per_pass();
                   })
      .def_prop_ro("bytes_sent",
                   [](const ScatterHandle& self) {
                     return self.look().comm->counters().bytes_sent;
                   })
      .def_prop_ro("wait_seconds",
                   [](const ScatterHandle& self) {
                     return self.look().exchange.wait_seconds();
                   })
      .def("close", &ScatterHandle::close);
}

}  // namespace thinwire::python
