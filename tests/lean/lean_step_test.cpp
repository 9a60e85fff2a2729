// SPDX-License-Identifier: Apache-2.0
// Steps of lean 1-bit Adam: what they keep and refuse. What they send, skip and
// reduce early is in lean_hosts_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lean/lean_support.h"
#include "optim/support.h"
#include "support/errors.h"
#include "thinwire/core/memory.h"

namespace thinwire::lean::lean_step_test {
namespace {

using test::LeanRun;
using Options = LeanOnebitAdamOptions;

constexpr DType kB16 = DType::kBFloat16;

std::vector<float> grads(const LeanRun& run, std::int64_t t, int rank) {
  return test::gradient(run.layout.size(), t, rank);
}

ParameterLayout whole_cells(std::size_t cells) {
  return ParameterLayout::of({{"first", {1024}, 0},
                              {"second", {cells - 3, 1024}, 0},
                              {"last", {2048}, 0}});
}

TEST(LeanSteps, TakeTheMemoryThatIsPromised) {
  const ParameterLayout layout = whole_cells(512);
  const auto n = static_cast<double>(layout.size());
  for (const int world : {2, 4})
    for (const int bits : {8, 4})
      test::run_ranks("local", world, [&](comm::Communicator& comm) {
        Options o{.freeze = {.step = 2}, .denominator_bits = bits};
        o.compression.exchange.bucket_elements = 16384;
        o.compression.exchange.num_threads = 1;
        const auto before = static_cast<double>(memory_use().total());
        LeanRun run(comm, layout, kB16, o);
        run.step(grads(run, 1, comm.rank()));
        const auto exact = static_cast<double>(memory_use().total());
        // bf16 parameters, masters and two moments of a shard; some buckets
        EXPECT_NEAR((exact - before) / n, 2 + 12.0 / world, 0.2);
        for (std::int64_t t = 2; t <= 4; ++t)
          run.step(grads(run, t, comm.rank()));
        const auto frozen = static_cast<double>(memory_use().total());
        const double want = 4 + 0.13 + 0.01 + bits / 8.0 + 2 + 2.0 / world;
        EXPECT_NEAR((frozen - before) / n / want, 1, 0.01)
            << world << " ranks, " << bits << " bits";
      });
}

TEST(LeanSteps, VerificationSeesLowerBits) {
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    Options o{.learning_rate = 0, .freeze = {.step = 1}};
    o.compression.exchange.verify_every = 3;
    LeanRun run(comm, test::small_layout(), kB16, o);
    for (std::int64_t t = 1; t <= 2; ++t) run.step(grads(run, t, comm.rank()));
    std::vector<float> values = run.optimizer->full_parameter("three");
    const auto params = run.values();
    if (comm.rank() == 1) values[1] = std::nextafter(values[1], 0.0f);
    run.optimizer->set_full_parameter("three", values);
    EXPECT_TRUE(test::same_bits<float>(run.values(), params));
    EXPECT_EQ(run.optimizer->full_parameter("three"), values);
    test::expect_error(ErrorCode::kCommFailure, {"verification failed"},
                       [&] { run.step(grads(run, 3, comm.rank())); });
  });
}

TEST(LeanSteps, FullValuesAreSetAndReadInBothStages) {
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    LeanRun run(comm, test::small_layout(), kB16, {.freeze = {.step = 2}});
    const std::vector<float> values = {1.2345678f, -0x1.8p-130f, 3e38f};
    for (std::int64_t t = 1; t <= 3; ++t) {
      run.optimizer->set_full_parameter("three", values);
      EXPECT_EQ(run.optimizer->full_parameter("three"), values);
      run.step(grads(run, t, comm.rank()));
    }
    const auto all = test::normal(run.layout.size(), 9);
    run.optimizer->set_masters(ConstView(all));
    EXPECT_TRUE(test::same_bits<float>(run.full(), all));
    test::expect_error(ErrorCode::kInvalidArgument, {"no parameter 'tree'"},
                       [&] { (void)run.optimizer->full_parameter("tree"); });
    test::expect_error(ErrorCode::kInvalidArgument, {"values"}, [&] {
      run.optimizer->set_full_parameter("three", std::vector<float>(2));
    });
  });
}

TEST(LeanSteps, RefuseWhatTheyCannotTake) {
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    const ParameterLayout layout = test::small_layout();
    const auto refused = [&](std::string_view text, DType dtype, Options o) {
      test::expect_error(ErrorCode::kInvalidArgument, {text},
                         [&] { LeanRun(comm, layout, dtype, o); });
    };
    refused("float32 or bfloat16, got float16", DType::kFloat16, {});
    refused("denominator_bits must be 8 or 4", kB16, {.denominator_bits = 2});
    refused("freeze_step", kB16, {.freeze = {.step = 0}});
    refused("during_backward must be false", kB16,
            {.compression = {.exchange = {.during_backward = true}}});
    refused("denominator_bits", kB16,
            {.denominator_bits = comm.rank() == 0 ? 4 : 8});
    LeanRun run(comm, layout, kB16, {.freeze = {.step = 1}});
    for (int stage = 0; stage < 2; ++stage) {
      auto own = grads(run, 1, comm.rank());
      Buffer other(layout.size(), kB16);
      test::expect_error(ErrorCode::kInvalidArgument,
                         {"the memory given at construction"},
                         [&] { run.optimizer->step(other.view(), own); });
      own.pop_back();
      test::expect_error(ErrorCode::kInvalidArgument, {"grads"},
                         [&] { run.optimizer->step(run.params.view(), own); });
      run.step(grads(run, 1, comm.rank()));
    }
  });
}

}  // namespace
}  // namespace thinwire::lean::lean_step_test
