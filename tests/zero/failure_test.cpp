// SPDX-License-Identifier: Apache-2.0
// Ranks that are lost, backwards that fail, optimizers that are destroyed while
// something is under way, and gradients in any order.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>

#include "support/endings.h"
#include "support/errors.h"
#include "support/sanitizers.h"
#include "zero/support.h"

namespace thinwire::zero::failure_test {
namespace {

using std::chrono::milliseconds;
using test::collect_some;
using test::end_soon;
using test::expect_error;
using test::kFailure;
using test::lose_one;
using test::ones;
using test::two_groups;
using test::unscaled;
using test::ZeroRun;

TEST(ZeroFailure, ARankLostInABackwardIsKnownToTheOthers) {
  for (const int stage : {1, 2})
    for (const std::size_t before : {0u, 1u, 4u})
      lose_one(3, [&](comm::Communicator& comm) {
        ZeroRun run(comm, two_groups(), test::adam_rule(), unscaled(stage));
        run.step(ones(run));
        const Buffer grads = run.scaled(ones(run), DType::kFloat16);
        if (comm.rank() == 1) {
          run.optimizer->gradients().begin({});
          collect_some(run, grads, before);
          throw std::runtime_error("disk full");
        }
        expect_error(kFailure, {"disk full"}, [&] { run.step(ones(run)); });
        expect_error(kFailure, {}, [&] {
          static_cast<void>(run.optimizer->whole_values().parameter("one"));
        });
      });
}

/// Adam that fails in a step, after it has updated some of its shard.
class FailingRule final : public optim::UpdateRule {
 public:
  FailingRule(const ParameterLayout& layout, bool fails)
      : adam_(layout, {}), fails_(fails) {}

  [[nodiscard]] std::string_view name() const noexcept override {
    return adam_.name();
  }
  [[nodiscard]] const ParameterLayout& layout() const noexcept override {
    return adam_.layout();
  }
  [[nodiscard]] std::string describe() const override {
    return adam_.describe();
  }
  void apply(std::int64_t step, const optim::UpdateArrays& arrays,
             ThreadPool& pool) override {
    adam_.apply(step, arrays, pool);
  }
  void apply_part(std::int64_t step, Range part,
                  const optim::UpdateArrays& arrays,
                  ThreadPool& pool) override {
    if (fails_ && part.offset > 2000) throw std::runtime_error("bit flip");
    adam_.apply_part(step, part, arrays, pool);
  }
  [[nodiscard]] View state(std::string_view key) override {
    return adam_.state(key);
  }
  [[nodiscard]] std::size_t num_groups() const noexcept override {
    return adam_.num_groups();
  }
  void set_learning_rate(std::size_t group, double rate) override {
    adam_.set_learning_rate(group, rate);
  }
  [[nodiscard]] double learning_rate(std::size_t group) const override {
    return adam_.learning_rate(group);
  }
  void set_weight_decay(std::size_t group, double decay) override {
    adam_.set_weight_decay(group, decay);
  }
  [[nodiscard]] double weight_decay(std::size_t group) const override {
    return adam_.weight_decay(group);
  }
  void add_to(optim::State& state, optim::Sharing sharing,
              const std::vector<Range>& elements) const override {
    adam_.add_to(state, sharing, elements);
  }
  [[nodiscard]] optim::Adoption adopt(StateDict& state) override {
    return adam_.adopt(state);
  }

 private:
  optim::Adam adam_;
  bool fails_;
};

// Parameters go with the stack while those of other buckets are gathered.
TEST(ZeroFailure, ARankLostInAnUpdateLeavesNothingInFlight) {
  const ParameterLayout layout = ParameterLayout::of({{"all", {20'000}}});
  for (const int stage : {1, 2})
    lose_one(2, [&](comm::Communicator& comm) {
      const auto rule = [&](const ParameterLayout& shard) {
        return std::make_unique<FailingRule>(shard, comm.rank() == 1);
      };
      ZeroOptions options = unscaled(stage);
      options.exchange.bucket_elements = 1;
      ZeroRun run(comm, layout, rule, options);
      if (comm.rank() == 1) {
        run.step(ones(run));
        ADD_FAILURE() << "the rule did not fail";
      }
      expect_error(kFailure, {"bit flip"}, [&] { run.step(ones(run)); });
    });
}

// ---- backwards and optimizers that are abandoned

TEST(ZeroAbandoned, ABackwardThatHasSentNothingIsCancelled) {
  for (const int world : {1, 2})
    test::run_ranks("local", world, [&](comm::Communicator& comm) {
      for (const int stage : {1, 2}) {
        ZeroRun run(comm, two_groups(), test::adam_rule(), unscaled(stage));
        ZeroRun clean(comm, two_groups(), test::adam_rule(), unscaled(stage));
        const Buffer grads = run.scaled(ones(run), DType::kFloat16);
        for (int t = 0; t < 2; ++t) {
          run.optimizer->gradients().begin({});
          run.optimizer->gradients().collect(0, grads.view().subview(0, 1500));
          EXPECT_TRUE(run.optimizer->gradients().cancel());
          expect_error(ErrorCode::kFailedPrecondition, {"no backward"},
                       [&] { run.optimizer->step(); });
          // Stage 1 sends nothing before the last one.
          if (stage == 1 || world == 1) {
            run.backward(ones(run), {.is_last = false});
            run.optimizer->gradients().begin({.is_first = false});
            if (world == 1) collect_some(run, grads, 0);
            EXPECT_TRUE(run.optimizer->gradients().cancel());
          }
          run.step(ones(run));
          clean.step(ones(clean));
          EXPECT_EQ(run.values(), clean.values()) << "stage " << stage;
        }
      }
    });
}

TEST(ZeroAbandoned, ABackwardThatHasSentABucketIsNotCancelled) {
  for (const int stage : {1, 2})
    end_soon(2, [&](comm::Communicator& comm) {
      ZeroRun run(comm, two_groups(), test::adam_rule(), unscaled(stage));
      const Buffer grads = run.scaled(ones(run), DType::kFloat16);
      if (stage == 2) {
        run.backward(ones(run), {.is_last = false});
        run.optimizer->gradients().begin({.is_first = false});
      } else {
        run.optimizer->gradients().begin({});
        collect_some(run, grads, 2);
      }
      EXPECT_FALSE(run.optimizer->gradients().cancel());
      expect_error(ErrorCode::kFailedPrecondition, {"only be destroyed"},
                   [&] { run.optimizer->gradients().begin({}); });
    });
}

TEST(ZeroAbandoned, AnOptimizerMayBeDestroyedWhileGradientsAreInFlight) {
  const int rounds = test::fewer_if_sanitized<int>({20, 5}, 2).back();
  for (const int stage : {1, 2})
    for (int round = 0; round < rounds; ++round)
      end_soon(3, [&](comm::Communicator& comm) {
        ZeroOptions options = unscaled(stage);
        options.exchange.bucket_elements = 1;
        ZeroRun run(comm, two_groups(), test::adam_rule(), options);
        if (round % 2 == 1) run.backward(ones(run), {.is_last = false});
        run.backward(ones(run), {.is_first = round % 2 == 0});
      });
}

// One rank has sent what the others never do.
TEST(ZeroAbandoned, AnOptimizerMayBeDestroyedIfOthersHaveSentNothing) {
  for (const int stage : {1, 2})
    end_soon(3, [&](comm::Communicator& comm) {
      ZeroRun run(comm, two_groups(), test::adam_rule(), unscaled(stage));
      if (comm.rank() > 0) return;
      try {
        run.backward(ones(run));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), kFailure);  // they had left by then
      }
    });
}

// Buckets of one cell, all of which fill before the one that is to leave first,
// and on every rank in another order.
TEST(ZeroAbandoned, NoOrderOfGradientsIsADeadlock) {
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < 12; ++i)
    specs.push_back({"p" + std::to_string(i), {700}});
  const ParameterLayout layout = ParameterLayout::of(std::move(specs));
  for (const bool overlap : {true, false})
    end_soon(4, [&](comm::Communicator& comm) {
      for (const int stage : {1, 2}) {
        ZeroOptions options = unscaled(stage);
        options.exchange.bucket_elements = 1;
        options.overlap = overlap;
        ZeroRun run(comm, layout, test::seeing_gradients(), options);
        std::vector<std::size_t> order(12);
        std::iota(order.begin(), order.end(), 0u);
        std::mt19937 random(static_cast<unsigned>(comm.rank()));
        for (int k = 0; k < 3; ++k) {
          if (comm.rank() > 0) std::shuffle(order.begin(), order.end(), random);
          run.optimizer->gradients().begin(
              {.is_first = k == 0, .is_last = k == 2});
          const std::vector<float> grad(700,
                                        static_cast<float>(comm.rank() + k));
          for (const std::size_t i : order)
            run.optimizer->gradients().collect(i, grad);
          run.optimizer->gradients().end();
          EXPECT_EQ(run.optimizer->gradients().late().elements, 0u);
        }
        EXPECT_TRUE(run.optimizer->step().applied);
        EXPECT_EQ(run.state("exp_avg"),
                  std::vector<float>(layout.size(), 7.5f));
      }
    });
}

}  // namespace
}  // namespace thinwire::zero::failure_test
