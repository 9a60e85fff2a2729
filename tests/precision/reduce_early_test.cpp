// SPDX-License-Identifier: Apache-2.0
// EarlyGradients::reduce: what is averaged before the step has the bits of
// what is averaged in it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "optim/states.h"
#include "precision/support.h"
#include "support/errors.h"
#include "support/sanitizers.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::precision::reduce_early_test {
namespace {

using kernels::kSumChunk;
using optim::Optimizer;
using optim::Phase;
using optim::StepReport;
using test::LowBitCase;

// Two whole chunks and a short one, in two groups that meet inside the second.
ParameterLayout chunked_layout() {
  return ParameterLayout::of(
      {{"a", {kSumChunk + 100}, 0}, {"b", {kSumChunk - 100 + 33}, 1}});
}

// Every order in which some of the three chunks may be handed over.
std::vector<std::vector<Range>> splits() {
  const Range first{0, kSumChunk};
  const Range second{kSumChunk, kSumChunk};
  const Range third{2 * kSumChunk, 33};
  return {{third, second, first},
          {{0, 2 * kSumChunk + 33}},
          {{kSumChunk, kSumChunk + 33}, first},
          {second},
          {third},
          {first, third},
          {{0, 0}, first}};
}

enum class Precision { kFp32, kFp16, kBf16 };

std::unique_ptr<Optimizer> make(comm::Communicator& comm,
                                const ParameterLayout& layout,
                                const LowBitCase& tested, Precision precision) {
  auto optimizer = tested.make(comm, layout);
  if (precision == Precision::kFp32) return optimizer;
  return std::make_unique<MixedPrecision>(
      comm, layout, std::move(optimizer), test::normal(layout.size(), 3),
      test::with_static_scale(
          precision == Precision::kFp16 ? DType::kFloat16 : DType::kBFloat16));
}

DType dtype_of_params(Precision precision) {
  if (precision == Precision::kFp32) return DType::kFloat32;
  return precision == Precision::kFp16 ? DType::kFloat16 : DType::kBFloat16;
}

class ReduceEarly
    : public ::testing::TestWithParam<std::tuple<int, Precision, LowBitCase>> {
};
INSTANTIATE_TEST_SUITE_P(
    All, ReduceEarly,
    ::testing::Combine(
        ::testing::ValuesIn(
            thinwire::test::fewer_if_sanitized<int>({3, 2, 1, 4}, 1)),
        ::testing::Values(Precision::kFp32, Precision::kFp16, Precision::kBf16),
        ::testing::ValuesIn(test::all_optimizers(
            {.exchange = {.max_grad_norm = 1, .bucket_elements = 5000}}))),
    [](const auto& tested) {
      return fmt::format("{}_{}_w{}", std::get<2>(tested.param).name,
                         to_string(dtype_of_params(std::get<1>(tested.param))),
                         std::get<0>(tested.param));
    });

// An optimizer with its parameters, in any precision.
struct Side {
  std::unique_ptr<Optimizer> optimizer;
  Buffer params;

  StepReport step(Buffer grads, const std::vector<Range>& early) {
    for (const Range& range : early)
      optimizer->early()->reduce(grads.view(), range);
    return optimizer->step(params.view(), grads.view());
  }
};

void expect_same(const Side& a, const Side& b) {
  EXPECT_TRUE(test::same_bytes(a.params.view(), b.params.view()));
  EXPECT_TRUE(test::same_state(copy_of(a.optimizer->state()),
                               copy_of(b.optimizer->state())));
}

TEST_P(ReduceEarly, GivesTheBitsOfAPlainStep) {
  const auto& [world, precision, tested] = GetParam();
  const ParameterLayout layout = chunked_layout();
  const DType dtype = dtype_of_params(precision);
  comm::run_local_ranks(world, [&, precision = precision,
                                &test_case = tested](auto& comm) {
    std::vector<Side> sides;
    const auto all = splits();
    for (std::size_t s = 0; s <= all.size(); ++s)  // the last one is plain
      sides.push_back({make(comm, layout, test_case, precision),
                       test::converted(test::normal(layout.size(), 3), dtype)});
    for (std::int64_t t = 1; t <= test_case.steps; ++t) {
      SCOPED_TRACE(t);
      // At first and again later one that is not finite on the last rank, in a
      // chunk that some hand over early and some do not.
      for (const bool good : {false, true}) {
        if (!good && t > 2) continue;
        auto values = test::grid_gradient(layout, t, comm.rank());
        values[0] += 0x1p-9f;
        if (!good && comm.rank() == comm.size() - 1)
          values[t == 1 ? kSumChunk + 7 : 2 * kSumChunk + 32] =
              std::numeric_limits<float>::infinity();
        const Buffer grads = test::converted(values, dtype);
        const bool exact =
            sides.back().optimizer->progress().phase == Phase::kExact;
        EXPECT_EQ(sides.back().optimizer->early()->reduces(), exact);
        const StepReport want =
            sides.back().step(test::copied(grads.view()), {});
        for (std::size_t s = 0; s < all.size(); ++s) {
          SCOPED_TRACE(s);
          const StepReport got =
              sides[s].step(test::copied(grads.view()),
                            exact ? all[s] : std::vector<Range>{});
          EXPECT_EQ(got.applied, want.applied);
          if (precision != Precision::kBf16 || want.phase != Phase::kLocal) {
            EXPECT_EQ(got.applied, good);
          }
          // A norm that is not finite may be infinite or a NaN.
          if (got.applied) {
            EXPECT_EQ(got.grad_norm, want.grad_norm);
          }
          expect_same(sides[s], sides.back());
        }
      }
    }
  });
}

// In the first step ranges that do not fit, later any where nothing is averaged
// exactly.
TEST_P(ReduceEarly, RefusesUnfitArgumentsAndContinues) {
  const auto& [world, precision, tested] = GetParam();
  const ParameterLayout layout = chunked_layout();
  const DType dtype = dtype_of_params(precision);
  comm::run_local_ranks(world, [&, precision = precision,
                                &test_case = tested](auto& comm) {
    Side one{make(comm, layout, test_case, precision),
             test::converted(test::normal(layout.size(), 3), dtype)};
    Side plain{make(comm, layout, test_case, precision),
               test::converted(test::normal(layout.size(), 3), dtype)};
    const auto refused = [&](ErrorCode code, View view, Range range,
                             std::string_view what) {
      test::expect_error(code, {what},
                         [&] { one.optimizer->early()->reduce(view, range); });
    };
    for (std::int64_t t = 1; t <= test_case.steps; ++t) {
      const Buffer grads =
          test::converted(test::grid_gradient(layout, t, comm.rank()), dtype);
      Buffer own = test::copied(grads.view());
      if (one.optimizer->progress().phase != Phase::kExact)
        refused(ErrorCode::kFailedPrecondition, own.view(), {0, kSumChunk},
                "reduce:");
      if (t == 1) {
        constexpr auto kInvalid = ErrorCode::kInvalidArgument;
        for (const Range off_the_grid :
             {Range{1, kSumChunk}, Range{0, kSumChunk - 1},
              Range{kSumChunk, 2 * kSumChunk}, Range{2 * kSumChunk, 34},
              Range{4 * kSumChunk, kSumChunk},
              // Its end overflows to 0.
              Range{kSumChunk, std::size_t{0} - kSumChunk}})
          refused(kInvalid, own.view(), off_the_grid, "range");
        refused(kInvalid, own.view().subview(0, kSumChunk), {0, kSumChunk},
                "grads");
        std::vector<double> doubles(layout.size());
        refused(kInvalid, doubles, {0, kSumChunk}, "grads");
        one.optimizer->early()->reduce(own.view(), {kSumChunk, kSumChunk});
        for (const Range in_flight :
             {Range{kSumChunk, kSumChunk}, Range{0, 2 * kSumChunk}})
          refused(kInvalid, own.view(), in_flight, "range");
      }
      (void)one.optimizer->step(one.params.view(), own.view());
      (void)plain.step(test::copied(grads.view()), {});
      expect_same(one, plain);
    }
  });
}

// Nothing may be under way at the minimum of the scale: the error says which
// rank's gradient it was.
TEST(ReduceEarly, IsRefusedAtTheMinimumOfTheScale) {
  const ParameterLayout layout = chunked_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    test::Training run(
        comm, layout, test::exact_adam({}),
        {.loss_scale = {.initial_scale = 1, .window = 1, .hysteresis = 1}});
    Buffer grads(layout.size(), DType::kFloat16);
    EXPECT_FALSE(run.optimizer->early()->reduces());
    test::expect_error(ErrorCode::kFailedPrecondition, {"reduce:"}, [&] {
      run.optimizer->early()->reduce(grads.view(), {0, kSumChunk});
    });
    // Two clean steps later the scale may fall again.
    for (int t = 1; t <= 2; ++t)
      EXPECT_TRUE(run.optimizer->step(run.params.view(), grads.view()).applied);
    EXPECT_EQ(run.optimizer->loss_scale(), 2);
    EXPECT_TRUE(run.optimizer->early()->reduces());
    run.optimizer->early()->reduce(grads.view(), {0, kSumChunk});
    EXPECT_TRUE(run.optimizer->step(run.params.view(), grads.view()).applied);
  });
}

}  // namespace
}  // namespace thinwire::precision::reduce_early_test
