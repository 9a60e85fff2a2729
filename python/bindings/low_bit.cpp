// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "communicator.h"
#include "config.h"
#include "engine/hierarchy.h"
#include "support/arrays.h"
#include "support/call.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/exchange/low_bit_mean.h"
#include "thinwire/exchange/low_bit_reduce_scatter.h"

namespace thinwire::python {
namespace {

// An average, and the objects that it needs to live.
struct MeanParts {
  MeanParts(std::shared_ptr<comm::Communicator> group,
            const std::vector<std::size_t>& sizes,
            const exchange::LowBitMeanOptions& options,
            const config::Config& config)
      : comm(std::move(group)),
        grouped(engine::by_host(*comm, config)),
        hosts(grouped ? comm::split_by_host(*grouped) : comm::HostGroups()),
        mean(ranks(), pool, sizes, options, grouped ? &hosts : nullptr) {}

  [[nodiscard]] comm::Communicator& ranks() const {
    return grouped ? *grouped : *comm;
  }

  std::shared_ptr<comm::Communicator> comm;
  std::unique_ptr<comm::Communicator> grouped;  // null if flat
  comm::HostGroups hosts;
  ThreadPool pool{};
  exchange::LowBitMean mean;
  OneCaller caller{};
};

using MeanHandle = Handle<MeanParts>;

void construct(MeanHandle* self, const CommunicatorHandle& comm,
               const std::vector<std::size_t>& sizes, int bits, bool bf16,
               config::Hierarchy hierarchy) {
  const exchange::LowBitMeanOptions options{
      .bits = bits,
      .residual_dtype = bf16 ? DType::kBFloat16 : DType::kFloat32};
  config::Config config;
  config.comm.hierarchy = hierarchy;
  std::shared_ptr<comm::Communicator> group = comm.get();
  std::shared_ptr<MeanParts> parts;
  {
    const WithoutGil released;
    parts =
        std::make_shared<MeanParts>(std::move(group), sizes, options, config);
  }
  new (self) MeanHandle("mean", std::move(parts));
}

// Returns this rank's host and the number of hosts; if flat, its rank and the
// number of ranks.
std::pair<int, int> hosts(const MeanHandle& self) {
  const MeanParts& parts = self.look();
  const comm::Hosts& all = parts.ranks().hosts();
  return {all.index, all.size};
}

std::vector<bool> begin(const MeanHandle& self, nb::handle values,
                        const std::vector<std::size_t>& units,
                        double loss_scale) {
  const Array array(values, "values");
  return call(self, "begin", [&](MeanParts& parts) {
    return parts.mean.begin({array.view(), units, loss_scale});
  });
}

std::vector<bool> finish(const MeanHandle& self) {
  return call(self, "finish",
              [](MeanParts& parts) { return parts.mean.finish(); });
}

nb::object worker_error(const MeanHandle& self) {
  return to_python(call(self, "worker_error", [](MeanParts& parts) {
    return copy_of(parts.mean.worker_error());
  }));
}

nb::object server_error(const MeanHandle& self) {
  return to_python(call(self, "server_error", [](MeanParts& parts) {
    return parts.mean.server_error();
  }));
}

void load_errors(const MeanHandle& self, nb::handle worker, nb::handle server) {
  const ConstArray of_worker(worker, "worker");
  const ConstArray of_server(server, "server");
  call(self, "load_errors", [&](MeanParts& parts) {
    parts.mean.load_errors(of_worker.view(), of_server.view());
  });
}

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

void bind_low_bit_mean(nb::module_& module) {
  nb::class_<MeanHandle>(module, "LowBitMean", nb::is_weak_referenceable())
      .def("__init__", &construct, "comm"_a, "sizes"_a, "bits"_a,
           "bf16_residuals"_a, "hierarchy"_a)
      .def("begin", &begin, "values"_a, "units"_a, "loss_scale"_a = 1.0)
      .def("finish", &finish)
      .def("worker_error", &worker_error)
      .def("server_error", &server_error)
      .def("load_errors", &load_errors, "worker"_a, "server"_a)
      .def_prop_ro("bytes_per_pass",
                   [](const MeanHandle& self) {
                     return self.look().mean.bytes_per_pass();
                   })
      .def_prop_ro("hosts", &hosts)
      .def_prop_ro("bytes_sent",
                   [](const MeanHandle& self) {
                     return self.look().ranks().counters().bytes_sent;
                   })
      .def_prop_ro("wait_seconds",
                   [](const MeanHandle& self) {
                     return self.look().mean.wait_seconds();
                   })
      .def("close", &MeanHandle::close);
}

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
