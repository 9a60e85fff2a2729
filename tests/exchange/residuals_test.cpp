// SPDX-License-Identifier: Apache-2.0
// An exchange keeps residuals, values added to them, mean() and previous_mean()
// between two calls.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "exchange/support.h"
#include "support/errors.h"
#include "support/same_bits.h"
#include "thinwire/comm/local.h"
#include "thinwire/core/buffer.h"

namespace thinwire::exchange::residuals_test {
namespace {

using test::SignAverage;
using Exchange = test::SignsExchange;

// Between two calls memory holds sums and scales instead of residuals. Nobody
// can tell: an exchange whose residuals are looked at after every call, which
// makes memory hold them, and one that is left alone stay bit-equal.
class KeptSum : public ::testing::TestWithParam<DType> {
 protected:
  [[nodiscard]] static SignAverage::Options options() {
    return {.blocks = {.bucket_elements = 2500}, .residual_dtype = GetParam()};
  }

  using Meanwhile =
      std::function<void(SignAverage& all, std::uint32_t step, int rank)>;

  /// Six calls on three ranks; `meanwhile` after each.
  static void compare(const Meanwhile& meanwhile) {
    const std::vector<Range> units = test::awkward_units();
    comm::run_local_ranks(3, [&](comm::Communicator& comm) {
      Exchange looked_at(comm, units, options());
      Exchange alone(comm, units, options());
      for (std::uint32_t step = 0; step < 6; ++step) {
        const auto seed = step * 10 + static_cast<std::uint32_t>(comm.rank());
        std::vector<float> want =
            test::layered_values(units.back().end(), seed);
        std::vector<float> got = want;
        looked_at.all.all_reduce(want);
        alone.all.all_reduce(got);
        ASSERT_TRUE(test::same_bytes(got, want)) << step;
        (void)looked_at.all.worker_error();
        (void)looked_at.all.server_error();
        meanwhile(looked_at.all, step, comm.rank());
        meanwhile(alone.all, step, comm.rank());
        (void)looked_at.all.worker_error();
        (void)looked_at.all.server_error();
      }
      EXPECT_TRUE(test::same_bytes(alone.all.worker_error(),
                                   looked_at.all.worker_error()));
      EXPECT_TRUE(test::same_bytes(alone.all.server_error(),
                                   looked_at.all.server_error()));
    });
  }
};
INSTANTIATE_TEST_SUITE_P(All, KeptSum,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16));

TEST_P(KeptSum, ReplacesTheResidual) {
  compare([](SignAverage&, std::uint32_t, int) {});
}

TEST_P(KeptSum, HoldsUnderTheMaskOfItsEncoding) {
  compare([](SignAverage& all, std::uint32_t step, int) {
    if (step == 4) return all.set_active({});
    if (step % 2 == 0)
      all.set_active(ActiveMask(all.layout(), [&](std::size_t i) {
        return i % 7 != step && (i < 2000 || i > 2100);
      }));
  });
}

TEST_P(KeptSum, BecomesTheResidualWhenSomethingIsAdded) {
  compare([](SignAverage& all, std::uint32_t step, int) {
    const std::vector<float> added = test::layered_values(1024, 99);
    if (step % 2 == 0) all.add_to_worker_error(3, added.data(), 0.5f);
  });
}

TEST_P(KeptSum, IsDroppedWhenErrorsAreClearedOrLoaded) {
  std::array<std::size_t, 3> served{};
  compare([&](SignAverage& all, std::uint32_t step, int rank) {
    std::size_t& size = served[static_cast<std::size_t>(rank)];
    if (step == 0) size = all.server_error().size();
    if (step == 1) all.errors().clear();
    if (step != 3) return;
    const DType dtype = GetParam();
    const std::vector<float> worker =
        test::layered_values(all.layout().residual_size(), 7);
    all.errors().load(
        test::converted(worker, dtype).view(),
        test::converted(std::vector<float>(size, 0.25f), dtype).view());
  });
}

// ---- errors that are added

class AddedError : public ::testing::TestWithParam<DType> {
 protected:
  // A bf16 residual is rounded when it is stored.
  [[nodiscard]] static float stored(float value) {
    return GetParam() == DType::kFloat32 ? value : to_float(to_bfloat16(value));
  }
};
INSTANTIATE_TEST_SUITE_P(All, AddedError,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16));

TEST_P(AddedError, IsAddedWithItsWeightUnlessMasked) {
  constexpr float kWeight = 0.125f;
  const std::vector<Range> units = test::awkward_units();
  const auto masked = [](std::size_t i) { return i % 7 == 2; };
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    Exchange exchange(comm, units, {.residual_dtype = GetParam()});
    SignAverage& all = exchange.all;
    all.set_active(
        ActiveMask(all.layout(), [&](std::size_t i) { return !masked(i); }));
    std::vector<float> values = test::layered_values(units.back().end(), 1);
    all.all_reduce(values);

    const std::vector<float> added = test::layered_values(values.size(), 2);
    std::vector<float> worker = test::floats_of(all.worker_error());
    const std::vector<float> server = test::floats_of(all.server_error());
    for (const Block& block : all.layout().blocks()) {
      for (std::size_t i = 0; i < block.values.size; ++i) {
        const std::size_t element = block.values.offset + i;
        if (masked(element)) continue;
        float& e = worker[block.residual.offset + i];
        e = stored(e + kWeight * added[element]);
      }
    }

    ThreadPool pool(3);
    pool.for_each(all.layout().blocks().size(), [&](std::size_t b) {
      const Block& block = all.layout().blocks()[b];
      const float* from = added.data() + block.values.offset;
      all.add_to_worker_error(b, from, kWeight);
    });
    EXPECT_EQ(test::floats_of(all.worker_error()), worker);
    EXPECT_EQ(test::floats_of(all.server_error()), server);
  });
}

TEST(AddedErrorOfABlock, IsRefusedForAnUnknownBlock) {
  const std::vector<Range> units = {{0, 4096}};
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Exchange exchange(comm, units);
    const std::vector<float> values(1024, 1.0f);
    test::expect_invalid({"[0, 4)", "got 4"}, [&] {
      exchange.all.add_to_worker_error(4, values.data(), 1);
    });
    EXPECT_EQ(test::floats_of(exchange.all.worker_error()),
              std::vector<float>(4096));
  });
}

// ---- results

using kernels::Signs;

constexpr std::size_t kSteps = 4;

// A block's result, copied out of the records.
struct Result {
  float scale = 0;
  std::vector<std::uint32_t> words;
  bool operator==(const Result&) const = default;
};

Result copy_of(const BlockLayout& layout, std::size_t block, Signs signs) {
  const std::size_t size = layout.blocks()[block].residual.size;
  return {signs.scale, {signs.words, signs.words + kernels::sign_words(size)}};
}

std::vector<Result> zeros(const BlockLayout& layout) {
  std::vector<Result> results;
  for (const Block& block : layout.blocks())
    results.push_back({0, std::vector<std::uint32_t>(
                              kernels::sign_words(block.residual.size))});
  return results;
}

// The results of one run, whose Source calls asked(block).
template <class Asked>
std::vector<Result> run(Exchange& exchange, std::uint32_t seed, Asked asked) {
  const BlockLayout& layout = exchange.all.layout();
  const std::vector<Range> units = test::awkward_units();
  const std::vector<float> values =
      test::layered_values(units.back().end(), seed);
  std::vector<Result> results(layout.blocks().size());
  exchange.all.run(
      [&](std::size_t b) {
        asked(b);
        return kernels::SignInput{.values = values.data() +
                                            layout.blocks()[b].values.offset};
      },
      [&](std::size_t b, Signs mean) {
        results[b] = copy_of(layout, b, mean);
      });
  return results;
}

class KeepsPrevious : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(All, KeepsPrevious, ::testing::Bool());

TEST_P(KeepsPrevious, ASourceReadsTheLastResultOfItsBlock) {
  const SignAverage::Options options{.blocks = {.bucket_elements = 1500},
                                     .keeps_previous = GetParam()};
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    Exchange exchange(comm, test::awkward_units(), options, /*threads=*/2);
    const BlockLayout& layout = exchange.all.layout();
    std::vector<Result> last = zeros(layout);
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      const auto seed = step * 10 + static_cast<std::uint32_t>(comm.rank());
      last = run(exchange, seed, [&](std::size_t b) {
        EXPECT_EQ(copy_of(layout, b, exchange.all.mean(b)), last[b]) << b;
      });
      for (std::size_t b = 0; b < last.size(); ++b)
        EXPECT_EQ(copy_of(layout, b, exchange.all.mean(b)), last[b]) << b;
    }
  });
}

TEST(PreviousMean, IsTheResultOfThePreviousRun) {
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    Exchange exchange(
        comm, test::awkward_units(),
        {.blocks = {.bucket_elements = 1500}, .keeps_previous = true},
        /*threads=*/2);
    const BlockLayout& layout = exchange.all.layout();
    std::vector<Result> last = zeros(layout);
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      const auto seed = step * 10 + static_cast<std::uint32_t>(comm.rank());
      // The words of the last result stay where they are for a whole run.
      std::vector<Signs> held;
      for (std::size_t b = 0; b < last.size(); ++b)
        held.push_back(exchange.all.mean(b));
      const std::vector<Result> next = run(exchange, seed, [&](std::size_t b) {
        EXPECT_EQ(copy_of(layout, b, exchange.all.previous_mean(b)), last[b]);
      });
      for (std::size_t b = 0; b < last.size(); ++b) {
        EXPECT_EQ(copy_of(layout, b, exchange.all.previous_mean(b)), last[b]);
        EXPECT_EQ(copy_of(layout, b, held[b]), last[b]);
      }
      last = next;
    }
  });
}

TEST(PreviousMean, ChangesNoResult) {
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    Exchange with(comm, test::awkward_units(), {.keeps_previous = true});
    Exchange without(comm, test::awkward_units());
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      const auto seed = step * 10 + static_cast<std::uint32_t>(comm.rank());
      const auto nothing = [](std::size_t) {};
      EXPECT_EQ(run(with, seed, nothing), run(without, seed, nothing));
    }
  });
}

}  // namespace
}  // namespace thinwire::exchange::residuals_test
