// SPDX-License-Identifier: Apache-2.0
// Calls that are refused while training, after which nothing has changed.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "optim/states.h"
#include "support/errors.h"
#include "zero/support.h"

namespace thinwire::zero::errors_test {
namespace {

using test::expect_error;
using test::two_groups;
using test::unscaled;
using test::ZeroRun;

constexpr auto kArgument = ErrorCode::kInvalidArgument;
constexpr auto kPrecondition = ErrorCode::kFailedPrecondition;

// Two runs, of which one is asked for what it refuses.
struct Pair {
  Pair(comm::Communicator& c, const ZeroOptions& options)
      : comm(c),
        run(c, two_groups(), test::adam_rule(), options),
        clean(c, two_groups(), test::adam_rule(), options) {}

  [[nodiscard]] std::vector<float> gradient(unsigned step) const {
    return test::normal(run.layout.size(),
                        10 * step + static_cast<unsigned>(comm.rank()));
  }
  void expect_same() {
    EXPECT_TRUE(test::same_bytes(run.params.view(), clean.params.view()));
    EXPECT_TRUE(test::same_state(copy_of(run.optimizer->state()),
                                 copy_of(clean.optimizer->state())));
  }
  ~Pair() {
    run.step(gradient(90));
    clean.step(gradient(90));
    expect_same();
  }

  comm::Communicator& comm;
  ZeroRun run;
  ZeroRun clean;
};

void with_pairs(const std::function<void(ZeroRun&, Pair&)>& body) {
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    for (const int stage : {1, 2}) {
      SCOPED_TRACE(stage);
      Pair pair(comm, unscaled(stage));
      pair.run.step(pair.gradient(1));
      pair.clean.step(pair.gradient(1));
      body(pair.run, pair);
    }
  });
}

// The errors of the window itself are tested in tests/exchange.
TEST(ZeroErrors, AStepComesBetweenBackwards) {
  with_pairs([](ZeroRun& run, Pair& pair) {
    ZeroOptimizer& zero = *run.optimizer;
    EXPECT_TRUE(zero.gradients().cancel());  // there is none
    expect_error(kPrecondition, {"no backward"}, [&] { zero.step(); });
    zero.gradients().begin({.is_last = false});
    expect_error(kPrecondition, {"step: inside"}, [&] { zero.step(); });
    expect_error(kPrecondition, {"full_gradient"}, [&] {
      static_cast<void>(zero.whole_values().gradient("one"));
    });
    expect_error(kPrecondition, {"set_full_gradient"},
                 [&] { zero.whole_values().set_gradient("one", {{1.0f}}); });
    zero.gradients().end();
    run.backward(pair.gradient(2), {.is_first = false});
    zero.step();
    pair.clean.window(
        {std::vector<float>(run.layout.size()), pair.gradient(2)});
  });
}

TEST(ZeroErrors, GradientsFitTheirParameters) {
  with_pairs([](ZeroRun& run, Pair& pair) {
    ZeroOptimizer& zero = *run.optimizer;
    const auto number = [&](const char* name) {
      return static_cast<std::size_t>(&run.layout.parameter(name) -
                                      run.layout.parameters().data());
    };
    std::vector<float> wide(1500);
    zero.gradients().begin({});
    expect_error(kArgument, {"'first'", "1500", "got float32 of 1499"}, [&] {
      zero.gradients().collect(0, ConstView(wide).subview(0, 1499));
    });
    const Buffer other = test::rounded(wide, DType::kBFloat16);
    expect_error(kArgument, {"'first'", "float32 or float16", "bfloat16"},
                 [&] { zero.gradients().collect(0, other.view()); });
    expect_error(kArgument, {"'one'", "got float32 of 0"},
                 [&] { zero.gradients().collect(number("one"), {}); });
    zero.gradients().collect(0, wide);
    zero.gradients().collect(number("empty"), {});
    expect_error(kPrecondition, {"'empty' has come"},
                 [&] { zero.gradients().collect(number("empty"), {}); });
    zero.gradients().end();
    zero.step();
    pair.clean.step(std::vector<float>(run.layout.size()));
  });
}

TEST(ZeroErrors, AStepTakesWhatBelongsToIt) {
  with_pairs([](ZeroRun& run, Pair& pair) {
    ZeroOptimizer& zero = *run.optimizer;
    const std::size_t n = run.layout.size();
    Buffer grads = run.scaled(pair.gradient(2), DType::kFloat16);
    Buffer other(n, DType::kFloat16);
    const auto refused = [&](std::initializer_list<std::string_view> parts,
                             const optim::StepInput& input) {
      expect_error(kArgument, parts, [&] { zero.step(input); });
    };
    const View params = run.params.view();
    refused({"params", "other memory"},
            {.params = other.view(), .grads = grads.view()});
    refused({"params"}, {.params = View(params.data(), n, DType::kBFloat16),
                         .grads = grads.view()});
    refused({"params"},
            {.params = params.subview(0, n - 1), .grads = grads.view()});
    refused({"grads", std::to_string(n - 1)},
            {.params = params, .grads = grads.view().subview(1, n - 1)});
    refused({"grads", "int64"},
            {.params = params, .grads = View(grads.data(), n, DType::kInt64)});
    for (const double scale : {0.0, -1.0, double{INFINITY}, double{NAN}})
      refused({"loss_scale", "> 0"},
              {.params = params, .grads = grads.view(), .loss_scale = scale});
    refused({"low_precision"}, {.params = params,
                                .grads = grads.view(),
                                .low_precision = other.view()});
    run.backward(pair.gradient(2));
    expect_error(kPrecondition, {"one by one", "give no others"},
                 [&] { zero.step(params, grads.view()); });
    zero.step();
    pair.clean.step(pair.gradient(2));
  });
}

TEST(ZeroErrors, EarlyRangesAreBucketsOfOneArray) {
  with_pairs([](ZeroRun& run, Pair& pair) {
    ZeroOptimizer& zero = *run.optimizer;
    Buffer grads = run.scaled(pair.gradient(2), DType::kFloat16);
    Buffer other(run.layout.size(), DType::kFloat16);
    const auto buckets = zero.gradients().buckets();
    if (zero.early() == nullptr) {
      zero.step(run.params.view(), grads.view());
      pair.clean.step(pair.gradient(2));
      return;
    }
    const std::size_t huge = std::numeric_limits<std::size_t>::max();
    for (const Range& range : std::vector<Range>{{0, 1},
                                                 {0, 2047},
                                                 {0, 2049},
                                                 {1, 2048},
                                                 {2048, run.layout.size()},
                                                 {run.layout.size(), 2048},
                                                 {0, huge},
                                                 {huge, 2048},
                                                 {2048, huge - 2047}})
      expect_error(kArgument, {"range", "one of buckets()"},
                   [&] { zero.early()->reduce(grads.view(), range); });
    expect_error(kArgument, {"grads"},
                 [&] { zero.early()->reduce(View{}, buckets[0]); });
    zero.early()->reduce(grads.view(), {2048, 4096});  // two neighbours
    for (const Range& range : {buckets[1], buckets[2], Range{0, 6144}})
      expect_error(kArgument, {"range", "has not left"},
                   [&] { zero.early()->reduce(grads.view(), range); });
    expect_error(kArgument, {"grads", "reduced in part"},
                 [&] { zero.early()->reduce(other.view(), buckets[0]); });
    expect_error(kArgument, {"grads", "reduced in part"}, [&] {
      static_cast<void>(zero.whole_values().gradient("one", other.view()));
    });
    expect_error(kArgument, {"grads", "reduced in part"},
                 [&] { zero.step(run.params.view(), other.view()); });
    expect_error(kPrecondition, {"come whole"},
                 [&] { zero.gradients().begin({}); });
    expect_error(kPrecondition, {"no backward"}, [&] { zero.step(); });
    static_cast<void>(zero.whole_values().gradient("one", grads.view()));
    expect_error(kArgument, {"range", "has not left"},
                 [&] { zero.early()->reduce(grads.view(), buckets[0]); });
    zero.step(run.params.view(), grads.view());
    pair.clean.step(pair.gradient(2));
    run.backward(pair.gradient(3));
    expect_error(kPrecondition, {"one by one"},
                 [&] { zero.early()->reduce(grads.view(), buckets[0]); });
    zero.step();
    pair.clean.step(pair.gradient(3));
  });
}

TEST(ZeroErrors, WholeValuesAreOfWhatThereIs) {
  with_pairs([](ZeroRun& run, Pair& pair) {
    ZeroOptimizer& zero = *run.optimizer;
    WholeValues& whole = zero.whole_values();
    const std::vector<float> values(1500), few(1499);
    const auto refused = [](std::initializer_list<std::string_view> parts,
                            const std::function<void()>& call) {
      expect_error(kArgument, parts, call);
    };
    const auto drop = [](const std::vector<float>&) {};
    refused({"'firts'", "'first'"}, [&] { drop(whole.parameter("firts")); });
    refused({"'firts'"}, [&] { drop(whole.gradient("firts")); });
    refused({"'firts'"}, [&] { drop(whole.state("firts", "exp_avg")); });
    refused({"'firts'"}, [&] { whole.set_parameter("firts", values); });
    refused({"'firts'"}, [&] { whole.set_gradient("firts", values); });
    refused({"'firts'"}, [&] { whole.set_state("firts", "exp_avg", values); });
    for (const char* key : {"param", "grad"}) {
      refused({"key", key}, [&] { drop(whole.state("first", key)); });
      refused({"key", key}, [&] { whole.set_state("first", key, values); });
    }
    // Also on ranks that own nothing of the parameter.
    refused({"momentum", "exp_avg"},
            [&] { drop(whole.state("one", "momentum")); });
    refused({"momentum", "exp_avg"},
            [&] { whole.set_state("one", "momentum", {{1.0f}}); });
    refused({"values", "1500", "1499"},
            [&] { whole.set_parameter("first", few); });
    refused({"values", "1500", "1499"},
            [&] { whole.set_gradient("first", few); });
    refused({"values", "1500", "1499"},
            [&] { whole.set_state("first", "exp_avg", few); });
    refused({"params"}, [&] { zero.set_masters(few); });
    expect_error(kPrecondition, {"full_gradient"},
                 [&] { drop(whole.gradient("first")); });
    if (zero.early() == nullptr) {
      Buffer grads(run.layout.size(), DType::kFloat16);
      expect_error(kPrecondition, {"full_gradient"},
                   [&] { drop(whole.gradient("first", grads.view())); });
    }
    expect_error(kPrecondition, {"set_full_gradient"},
                 [&] { whole.set_gradient("first", values); });
    refused({"group", "below 2"},
            [&] { zero.groups().set_learning_rate(2, 0.1); });
    refused({"group", "below 2"},
            [&] { static_cast<void>(zero.groups().learning_rate(2)); });
    refused({"learning_rate"}, [&] { zero.groups().set_learning_rate(0, -1); });
    refused({"learning_rate"},
            [&] { zero.groups().set_learning_rate(1, NAN); });
    refused({"group", "below 2"},
            [&] { zero.groups().set_weight_decay(2, 0.1); });
    refused({"weight_decay", "-1"},
            [&] { zero.groups().set_weight_decay(1, -1); });
    pair.expect_same();
  });
}

}  // namespace
}  // namespace thinwire::zero::errors_test
