// SPDX-License-Identifier: Apache-2.0
// ZeRO-2's step of a group of one, whose shard is everything, as C functions
// for mixed_precision.py: what the rows zero2/shard_step and offload/host_step
// of `thinwire bench` time, for a model of torch's. They return -1, or null,
// where something has failed. One caller at a time.
#include <cstddef>
#include <exception>
#include <memory>

#include "apps/thinwire/bench/echo_transport.h"
#include "apps/thinwire/bench/idle_copies.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/optim/adam.h"
#include "thinwire/shard/zero_optimizer.h"

namespace {

using namespace thinwire;
using apps::bench::EchoTransport;
using apps::bench::IdleCopies;

template <class Body>
double or_minus_one(Body body) {
  try {
    return body();
  } catch (const std::exception&) {
    return -1;
  }
}

}  // namespace

extern "C" {

/// Fields in the order of mixed_precision.py's class ZeroSettings.
struct ThinwireZeroSettings {
  const float* params;  ///< What masters are made of.
  void* model;          ///< fp16, in and out.
  std::size_t size;     ///< >= 1
  float learning_rate;
  float weight_decay;
  float loss_scale;
  float max_norm;
  int offload;
  int num_threads;
};

struct ThinwireZero {
  explicit ThinwireZero(const ThinwireZeroSettings& s)
      : comm(std::make_unique<EchoTransport>(1)),
        bus(std::make_shared<IdleCopies>()),
        // A parameter of one element can be read without reading all.
        layout(ParameterLayout::of({{"all", {s.size - 1}}, {"one", {1}}})),
        optimizer(
            comm, layout,
            [&s](const ParameterLayout& shard) {
              return std::make_unique<optim::Adam>(
                  shard,
                  optim::AdamOptions{.learning_rate = double{s.learning_rate},
                                     .weight_decay = double{s.weight_decay}});
            },
            View(s.model, s.size, DType::kFloat16),
            {.stage = 2,
             .dtype = DType::kFloat16,
             .loss_scale = {.initial_scale = double{s.loss_scale},
                            .dynamic = false},
             .exchange = {.max_grad_norm = double{s.max_norm},
                          .bucket_elements = std::size_t{4} << 20,
                          .num_threads = s.num_threads},
             .offload = s.offload != 0,
             .copy_engine = bus},
            ConstView(s.params, s.size, DType::kFloat32)) {}

  comm::Communicator comm;
  std::shared_ptr<IdleCopies> bus;
  ParameterLayout layout;
  shard::ZeroOptimizer optimizer;
};

ThinwireZero* thinwire_zero_new(const ThinwireZeroSettings* settings) {
  try {
    return std::make_unique<ThinwireZero>(*settings).release();
  } catch (const std::exception&) {
    return nullptr;
  }
}

void thinwire_zero_delete(ThinwireZero* zero) { delete zero; }

/// Takes fp16 gradients to where step() finds them: not what is timed.
double thinwire_zero_collect(ThinwireZero* zero, const void* grads) {
  return or_minus_one([&] {
    zero->bus->copies = true;
    const std::size_t size = zero->layout.size();
    const ConstView values(grads, size, DType::kFloat16);
    zero->optimizer.begin_backward({});
    zero->optimizer.collect(1, values.subview(size - 1, 1));
    zero->optimizer.collect(0, values.subview(0, size - 1));
    zero->optimizer.end_backward();
    (void)zero->optimizer.full_gradient("one");  // all are there
    zero->bus->copies = false;
    return 0;
  });
}

/// Gives the norm. With offload parameters stay on the host.
double thinwire_zero_step(ThinwireZero* zero) {
  return or_minus_one([&] { return zero->optimizer.step().grad_norm; });
}

/// Writes the fp32 parameters to `params`.
double thinwire_zero_read(ThinwireZero* zero, float* params) {
  return or_minus_one([&] {
    const View to(params, zero->layout.size(), DType::kFloat32);
    for (const Parameter& p : zero->layout.parameters())
      kernels::convert(zero->optimizer.full_parameter(p.name),
                       to.subview(p.offset, p.size));
    return 0;
  });
}

}  // extern "C"
