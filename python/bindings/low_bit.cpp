// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "communicator.h"
#include "engine/hierarchy.h"
#include "exchange/codec/codec.h"
#include "support/arrays.h"
#include "support/call.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/low_bit_mean.h"
#include "thinwire/exchange/low_bit_reduce_scatter.h"
#include "thinwire/exchange/low_rank_mean.h"

namespace thinwire::python {
namespace {

using exchange::LowBitMean;
using exchange::LowRankMean;
using exchange::MatrixShape;

// An average, and the objects that must outlive it.
template <class Mean>
struct MeanParts {
  template <class Units, class Options>
  MeanParts(std::shared_ptr<comm::Communicator> group, const Units& units,
            const Options& options, const config::Config& config)
      : comm(std::move(group)),
        grouped(engine::by_host(*comm, config)),
        hosts(grouped ? comm::split_by_host(*grouped) : comm::HostGroups()),
        mean(ranks(), pool, units, options, grouped ? &hosts : nullptr) {}

  [[nodiscard]] comm::Communicator& ranks() const {
    return grouped ? *grouped : *comm;
  }

  std::shared_ptr<comm::Communicator> comm;
  std::unique_ptr<comm::Communicator> grouped;  // null if flat
  comm::HostGroups hosts;
  ThreadPool pool{};
  Mean mean;
  OneCaller caller{};
};

template <class Mean>
using MeanHandle = Handle<MeanParts<Mean>>;

template <class Mean, class Units, class Options>
void construct_mean(MeanHandle<Mean>* self, const CommunicatorHandle& comm,
                    const Units& units, const Options& options,
                    config::Hierarchy hierarchy) {
  config::Config config;
  config.comm.hierarchy = hierarchy;
  std::shared_ptr<comm::Communicator> group = comm.get();
  std::shared_ptr<MeanParts<Mean>> parts;
  {
    const WithoutGil released;
    parts = std::make_shared<MeanParts<Mean>>(std::move(group), units, options,
                                              config);
  }
  new (self) MeanHandle<Mean>("mean", std::move(parts));
}

void construct(MeanHandle<LowBitMean>* self, const CommunicatorHandle& comm,
               const std::vector<std::size_t>& sizes, int bits, bool bf16,
               config::Hierarchy hierarchy) {
  const exchange::LowBitMeanOptions options{
      .bits = bits,
      .residual_dtype = bf16 ? DType::kBFloat16 : DType::kFloat32};
  construct_mean(self, comm, sizes, options, hierarchy);
}

// Numbers of rows and columns.
using ShapeTuple = std::pair<std::size_t, std::size_t>;

std::vector<MatrixShape> shapes_of(const std::vector<ShapeTuple>& given) {
  std::vector<MatrixShape> shapes;
  for (const auto& [rows, columns] : given) shapes.push_back({rows, columns});
  return shapes;
}

void construct_low_rank(MeanHandle<LowRankMean>* self,
                        const CommunicatorHandle& comm,
                        const std::vector<ShapeTuple>& shapes, int low_rank,
                        std::int64_t first_steps, int first_bits,
                        config::Hierarchy hierarchy) {
  const exchange::LowRankMeanOptions options{.low_rank = low_rank,
                                             .first_steps = first_steps,
                                             .first_bits = first_bits};
  construct_mean(self, comm, shapes_of(shapes), options, hierarchy);
}

Buffer owned(ConstView values) { return copy_of(values); }
Buffer owned(Buffer&& values) { return std::move(values); }

// Binds the members that both averages have.
template <class Mean>
nb::class_<MeanHandle<Mean>> bind_mean(nb::module_& module, const char* name) {
  using Bound = MeanHandle<Mean>;
  using Parts = MeanParts<Mean>;
  nb::class_<Bound> bound(module, name, nb::is_weak_referenceable());
  bound
      .def(
          "begin",
          [](const Bound& self, nb::handle values,
             const std::vector<std::size_t>& units, double loss_scale) {
            const Array array(values, "values");
            return call(self, "begin", [&](Parts& parts) {
              return parts.mean.begin({array.view(), units, loss_scale});
            });
          },
          "values"_a, "units"_a, "loss_scale"_a = 1.0)
      .def("finish",
           [](const Bound& self) {
             return call(self, "finish",
                         [](Parts& parts) { return parts.mean.finish(); });
           })
      .def("worker_error",
           [](const Bound& self) {
             return to_python(call(self, "worker_error", [](Parts& parts) {
               return owned(parts.mean.worker_error());
             }));
           })
      .def("server_error",
           [](const Bound& self) {
             return to_python(call(self, "server_error", [](Parts& parts) {
               return parts.mean.server_error();
             }));
           })
      .def_prop_ro(
          "bytes_per_pass",
          [](const Bound& self) { return self.look().mean.bytes_per_pass(); })
      // The index of this rank's host and the number of hosts. If flat, its
      // rank and the number of ranks.
      .def_prop_ro("hosts",
                   [](const Bound& self) {
                     const comm::Hosts& all = self.look().ranks().hosts();
                     return std::pair(all.index, all.size);
                   })
      .def_prop_ro("bytes_sent",
                   [](const Bound& self) {
                     return self.look().ranks().counters().bytes_sent;
                   })
      .def_prop_ro(
          "wait_seconds",
          [](const Bound& self) { return self.look().mean.wait_seconds(); })
      .def("close", &Bound::close);
  return bound;
}

void load_errors(const MeanHandle<LowBitMean>& self, nb::handle worker,
                 nb::handle server) {
  const ConstArray of_worker(worker, "worker");
  const ConstArray of_server(server, "server");
  call(self, "load_errors", [&](auto& parts) {
    parts.mean.load_errors(of_worker.view(), of_server.view());
  });
}

nb::object factors(const MeanHandle<LowRankMean>& self) {
  return to_python(call(self, "factors", [](auto& parts) {
    return copy_of(parts.mean.factors());
  }));
}

std::vector<std::uint64_t> generators(const MeanHandle<LowRankMean>& self) {
  return call(self, "generators", [](auto& parts) {
    const auto found = parts.mean.generators();
    return std::vector<std::uint64_t>(found.begin(), found.end());
  });
}

void load(const MeanHandle<LowRankMean>& self, nb::handle worker,
          nb::handle server, nb::handle factors,
          const std::vector<std::uint64_t>& generators, std::int64_t passes) {
  const ConstArray of_worker(worker, "worker");
  const ConstArray of_server(server, "server");
  const ConstArray of_factors(factors, "factors");
  call(self, "load", [&](auto& parts) {
    parts.mean.load({.worker = of_worker.view(),
                     .server = of_server.view(),
                     .factors = of_factors.view(),
                     .generators = generators,
                     .passes = passes});
  });
}

using exchange::LowBitReduceScatter;

// An exchange, and the objects that must outlive it.
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

// ---- the codec, with which a device's can be compared

Buffer encode_block(nb::handle values, nb::handle residual, double factor,
                    int bits) {
  const ConstArray given(values, "values");
  const Array error(residual, "residual");
  const exchange::ValueCodec& codec = exchange::codec_of(bits);
  Buffer record(codec.record_bytes(error.view().size()), DType::kUInt8);
  codec.encode({.values = given.view(),
                .factor = static_cast<float>(factor),
                .residual = error.view(),
                .error = error.view()},
               record.view().as<std::uint8_t>().data());
  return record;
}

// `records` has the records of all ranks, one after the other.
void average_blocks(nb::handle records, nb::handle mean, int bits) {
  const ConstArray given(records, "records");
  const Array result(mean, "mean");
  const exchange::ValueCodec& codec = exchange::codec_of(bits);
  const std::size_t each = codec.record_bytes(result.view().size());
  const auto bytes = given.view().as<std::uint8_t>();
  if (bytes.size() == 0 || bytes.size() % each != 0)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("records must have a multiple of {} bytes, got {}",
                            each, bytes.size()));
  std::vector<const std::uint8_t*> sent;
  for (std::size_t at = 0; at < bytes.size(); at += each)
    sent.push_back(bytes.data() + at);
  codec.average(sent, result.view().as<float>());
}

}  // namespace

void bind_codec(nb::module_& module) {
  module.def(
      "encode",
      [](nb::handle values, nb::handle residual, double factor, int bits) {
        return to_python(encode_block(values, residual, factor, bits));
      },
      "values"_a, "residual"_a, "factor"_a, "bits"_a);
  module.def("average", &average_blocks, "records"_a, "mean"_a, "bits"_a);
}

void bind_means(nb::module_& module) {
  bind_mean<LowBitMean>(module, "LowBitMean")
      .def("__init__", &construct, "comm"_a, "sizes"_a, "bits"_a,
           "bf16_residuals"_a, "hierarchy"_a)
      .def("load_errors", &load_errors, "worker"_a, "server"_a);
  bind_mean<LowRankMean>(module, "LowRankMean")
      .def("__init__", &construct_low_rank, "comm"_a, "shapes"_a, "low_rank"_a,
           "first_steps"_a, "first_bits"_a, "hierarchy"_a)
      .def("factors", &factors)
      .def("generators", &generators)
      .def_prop_ro("passes",
                   [](const MeanHandle<LowRankMean>& self) {
                     return self.look().mean.passes();
                   })
      .def("load", &load, "worker"_a, "server"_a, "factors"_a, "generators"_a,
           "passes"_a);
  module.def(
      "rank_of",
      [](const ShapeTuple& shape, int low_rank) {
        return MatrixShape{shape.first, shape.second}.rank(low_rank);
      },
      "shape"_a, "low_rank"_a);
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
