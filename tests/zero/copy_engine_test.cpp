// SPDX-License-Identifier: Apache-2.0
#include "thinwire/zero/copy_engine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "optim/support.h"
#include "support/ranks.h"
#include "thinwire/core/buffer.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/optim/adam.h"
#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::zero::copy_engine_test {
namespace {

class CountingCopies final : public CopyEngine {
 public:
  Ticket queue(ConstView from, View to) override {
    EXPECT_EQ(from.dtype(), to.dtype());
    EXPECT_EQ(from.size(), to.size());
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.bytes());
    elements += from.size();
    return ++queued;
  }
  void wait(Ticket ticket) override { EXPECT_LE(ticket, queued); }

  std::size_t elements = 0;
  Ticket queued = 0;
};

// This rank's parameters after two steps with offload.
std::vector<float> trained(comm::Communicator& comm,
                           std::shared_ptr<CopyEngine> engine) {
  constexpr std::size_t kSize = 5000;
  Buffer params(kSize, DType::kBFloat16);
  ZeroOptimizer optimizer(comm, ParameterLayout::of({{"all", {kSize}}}),
                          [](const ParameterLayout& shard) {
                            return std::make_unique<optim::Adam>(
                                shard,
                                optim::AdamOptions{.learning_rate = 0.01});
                          },
                          params.view(),
                          {.stage = 2,
                           .dtype = DType::kBFloat16,
                           .exchange = {.bucket_elements = 1},
                           .offload = true,
                           .copy_engine = std::move(engine)});
  for (int step = 0; step < 2; ++step) {
    Buffer grads(kSize, DType::kBFloat16);
    kernels::convert(test::gradient(kSize, step, comm.rank()), grads.view());
    optimizer.step(params.view(), grads.view());
  }
  std::vector<float> values(kSize);
  kernels::convert(params.view(), values);
  return values;
}

TEST(CopyEngines, OfTheCallersDoAllCopies) {
  for (const int world : {1, 2})
    test::run_ranks("local", world, [](comm::Communicator& comm) {
      const auto engine = std::make_shared<CountingCopies>();
      EXPECT_EQ(trained(comm, engine), trained(comm, nullptr));
      std::vector<std::int64_t> copied = {
          static_cast<std::int64_t>(engine->elements)};
      comm.all_reduce(std::span(copied));
      // In each of two steps, gradients there and parameters back.
      EXPECT_EQ(copied[0], 2 * 2 * 5000);
    });
}

}  // namespace
}  // namespace thinwire::zero::copy_engine_test
