// SPDX-License-Identifier: Apache-2.0
// What a rank holds at its peak, counted where memory is allocated: the table
// in docs/algorithms/zero.md.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/ranks.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/memory.h"
#include "thinwire/engine/engine.h"

namespace thinwire::engine::engine_memory_test {

using config::Config;

namespace {

// 986 368 parameters, of which the largest has an eighth.
ParameterLayout model() {
  std::vector<ParameterSpec> specs = {{"embedding", {512, 256}}};
  for (int i = 0; i < 13; ++i) {
    specs.push_back({fmt::format("{}.weight", i), {256, 256}});
    specs.push_back({fmt::format("{}.bias", i), {256}});
  }
  return ParameterLayout::of(std::move(specs));
}

Config config_of(int stage, std::int64_t backwards) {
  Config config{.optimizer = optim::AdamOptions{},
                .gradient_accumulation_steps = backwards};
  config.precision.dtype = DType::kBFloat16;
  config.zero.stage = stage;
  return config;
}

// Two steps, with one gradient at a time where they are released.
MemoryUse use_of(comm::Communicator& comm, const Config& config) {
  const ParameterLayout layout = model();
  reset_memory_peak();
  const auto buffer = [](MemoryKind kind, std::size_t size) {
    const MemoryScope scope(kind);
    return Buffer(size, DType::kBFloat16);
  };
  const bool keeps = keeps_gradients(config, comm.size());
  Buffer params = buffer(MemoryKind::kParameters, layout.size());
  Buffer grads = buffer(MemoryKind::kGradients, keeps ? layout.size() : 0);
  Engine engine(comm, layout, config, params.view(), grads.view());
  for (std::int64_t i = 0; i < 2 * config.batch(comm.size()).accumulation_steps;
       ++i) {
    engine.begin_backward();
    for (std::size_t k = layout.parameters().size(); k-- > 0;) {
      if (keeps) {
        engine.gradient_ready(k);
        continue;
      }
      const Buffer gradient =
          buffer(MemoryKind::kGradients, layout.parameters()[k].size);
      engine.gradient_ready(k, gradient.view());
    }
    engine.end_backward();
    engine.step();
  }
  return memory_use();
}

struct Expected {
  double parameters, gradients, states, buckets;
  [[nodiscard]] double total() const {
    return parameters + gradients + states + buckets;
  }
};

// Bytes per rank, as documented.
Expected formula(int stage, double world, bool adds_up) {
  const auto n = static_cast<double>(model().size());
  const double bucket = world == 1 ? 0 : n / 8;  // elements
  const double width = adds_up ? 4 : 2;
  const double largest = 2 * 512 * 256;
  Expected bytes{2 * n, width * n, 12 * n / world, 0};
  if (stage == 1 && adds_up) {
    bytes.gradients += largest;
    bytes.buckets = 2 * 2 * bucket;
  }
  if (stage == 2) {
    bytes.gradients = width * n / world + largest;
    bytes.buckets = 2 * 2 * bucket + (adds_up ? 2 * 4 * bucket / world : 0);
  }
  return bytes;
}

TEST(EngineMemory, IsWithinFivePercentOfItsFormula) {
  for (const int stage : {1, 2})
    for (const std::int64_t backwards : {1, 4})
      for (const int world : {1, 2, 4, 8})
        comm::run_local_ranks(world, [&](comm::Communicator& comm) {
          const MemoryUse use = use_of(comm, config_of(stage, backwards));
          const Expected want = formula(stage, world, backwards > 1);
          const auto peak = static_cast<double>(use.peak());
          EXPECT_NEAR(peak, want.total(), want.total() * 0.05)
              << "stage " << stage << ", " << backwards << " backwards, rank "
              << comm.rank() << " of " << world;
          // No more than four buckets, whatever else is counted.
          const auto n = static_cast<double>(model().size());
          EXPECT_LE(static_cast<double>(use.at_peak_of(MemoryKind::kBuckets)),
                    4 * 2 * (n / 8 + 1024));
        });
}

}  // namespace
}  // namespace thinwire::engine::engine_memory_test
