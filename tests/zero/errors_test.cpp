// SPDX-License-Identifier: Apache-2.0
// Calls that are refused while training, after which nothing has changed, and
// arguments that the constructor refuses.
#include <fmt/format.h>
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

TEST(ZeroErrors, AStepRefusesForeignArguments) {
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

TEST(ZeroErrors, WholeValuesRefuseUnknownNames) {
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

// ---- construction, and gradients that end training

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(ZeroConstruction, OptionsHaveRanges) {
  const auto refused = [](std::string_view field, const ZeroOptions& options) {
    expect_error(kArgument, {field}, [&] { options.validate(); });
  };
  for (const int stage : {-1, 0, 3}) refused("stage", {.stage = stage});
  for (const DType dtype : {DType::kFloat64, DType::kInt64, DType::kUInt8}) {
    refused("dtype", {.dtype = dtype});
    refused("master_dtype", {.master_dtype = dtype});
    refused("accumulation_dtype", {.accumulation_dtype = dtype});
    refused("communication_dtype", {.communication_dtype = dtype});
  }
  const DType half = DType::kFloat16;
  refused("master_dtype", {.dtype = half, .master_dtype = DType::kBFloat16});
  refused("master_dtype", {.master_dtype = half});
  refused("accumulation_dtype",
          {.dtype = half, .accumulation_dtype = DType::kBFloat16});
  refused("max_grad_norm", {.exchange = {.max_grad_norm = -1}});
  refused("verify_every", {.exchange = {.verify_every = -1}});
  refused("num_threads", {.exchange = {.num_threads = -1}});
  refused("window", {.dtype = half, .loss_scale = {.window = 0}});
  EXPECT_NO_THROW((ZeroOptions{.loss_scale = {.window = 0}}.validate()));
}

TEST(ZeroConstruction, ArgumentsFitTheLayout) {
  test::run_ranks("local", 2, [](comm::Communicator& comm) {
    const ParameterLayout layout = two_groups();
    const std::size_t n = layout.size();
    const auto rule = test::adam_rule();
    Buffer params(n, DType::kFloat16);
    std::vector<float> initial(n);
    ZeroOptions options = unscaled(1);
    const auto refused = [&](std::initializer_list<std::string_view> parts,
                             const MakeRule& make, View view, ConstView start) {
      expect_error(kArgument, parts, [&] {
        ZeroOptimizer zero(comm, layout, make, view, options, start);
      });
    };
    const View view = params.view();
    refused({"params", "float16 of 7101", "float32 of 7101"}, rule, initial,
            {});
    refused({"params", "float16 of 7100"}, rule, view.subview(0, n - 1), {});
    refused({"initial", "float32 of 7101", "float16"}, rule, view, view);
    refused({"initial", "float32 of 3"}, rule, view,
            ConstView(initial).subview(0, 3));
    refused({"make_rule"}, nullptr, view, {});
    refused({"make_rule", "null"},
            [](const ParameterLayout&) { return nullptr; }, view, {});
    options.master_dtype = DType::kFloat16;
    refused({"master_dtype", "lamb", "float16"}, test::lamb_rule(), view, {});
    options.master_dtype = DType::kFloat32;
    const auto experts = [&](std::vector<ExpertGroup> groups) {
      options.experts = std::move(groups);
      refused({"experts"}, rule, view, {});
    };
    experts({{.group = 2, .comm = &comm}});
    experts({{.group = 1, .comm = nullptr}});
    experts({{.group = 1, .comm = &comm}, {.group = 1, .comm = &comm}});
    experts({{.group = 1, .comm = &comm}, {.group = 0, .comm = &comm}});
    options.experts.clear();
    EXPECT_NO_THROW(ZeroOptimizer(comm, layout, rule, view, options));
  });
}

// Every field in which ranks may differ, and what then shows the difference.
TEST(ZeroConstruction, RanksGiveTheSameOptions) {
  ZeroOptions base = unscaled(1);
  std::vector<ZeroOptions> others(17, base);
  std::size_t next = 0;
  others[next++].stage = 2;
  others[next++].communication_dtype = DType::kFloat32;
  others[next++].accumulation_dtype = DType::kFloat16;
  others[next++].master_dtype = DType::kFloat16;
  others[next++].average = false;
  others[next++].overlap = false;
  others[next++].exchange.max_grad_norm = 2;
  others[next++].exchange.bucket_elements = 1024;
  others[next++].exchange.verify_every = 1;
  others[next++].exchange.skip_nonfinite = false;
  others[next++].loss_scale.initial_scale = 2;
  others[next++].loss_scale.dynamic = true;
  others[next++].loss_scale.window = 5;
  others[next++].loss_scale.hysteresis = 5;
  others[next++].loss_scale.consecutive_hysteresis = true;
  others[next++].loss_scale.at_minimum = precision::AtMinimum::kHold;
  others[next++].loss_scale.max_scale = 0x1p20;
  ASSERT_EQ(next, others.size());
  test::run_ranks("local", 3, [&](comm::Communicator& comm) {
    const ParameterLayout layout = two_groups();
    Buffer params(layout.size(), DType::kFloat16);
    const auto differs = [&](const ParameterLayout& of, const MakeRule& make,
                             const ZeroOptions& options, View view) {
      expect_error(kArgument, {"must be the same on all ranks", "rank 2"},
                   [&] { ZeroOptimizer zero(comm, of, make, view, options); });
    };
    const bool is_other = comm.rank() == 2;
    const auto rule = test::adam_rule();
    for (const ZeroOptions& other : others)
      differs(layout, rule, is_other ? other : base, params.view());
    differs(layout, is_other ? test::adam_rule({.beta1 = 0.8}) : rule, base,
            params.view());
    const auto renamed = ParameterLayout::of({{"x", {layout.size()}}});
    differs(is_other ? renamed : layout, rule, base, params.view());
    std::vector<float> wide(layout.size());
    differs(layout, rule, is_other ? unscaled(1, DType::kFloat32) : base,
            is_other ? View(wide) : params.view());
    // Options that change no result may differ.
    ZeroOptions threads = base;
    threads.exchange.num_threads = 1 + comm.rank();
    EXPECT_NO_THROW(ZeroOptimizer(comm, layout, rule, params.view(), threads));
  });
}

TEST(ZeroConstruction, AtTheMinimumScaleTheParameterIsNamedOnAllRanks) {
  const ParameterLayout layout = two_groups();
  test::run_ranks("local", 3, [&](comm::Communicator& comm) {
    for (const int stage : {1, 2})
      for (const int guilty : {0, 2}) {
        ZeroOptions options = unscaled(stage);
        options.loss_scale = {.initial_scale = 1, .hysteresis = 1};
        ZeroRun run(comm, layout, test::adam_rule(), options);
        ZeroRun spared(comm, layout, test::adam_rule(), options);
        const std::vector<float> grads(layout.size(), 0.5f);
        for (int t = 0; t < 2; ++t) {
          auto bad = grads;
          if (comm.rank() == guilty) {
            bad[layout.parameter("second").offset + 3499] = kInfinity;
            bad[layout.parameter("last").offset] = kInfinity;
          }
          const StateDict state = copy_of(run.optimizer->state());
          const auto before = run.values();
          expect_error(ErrorCode::kNonFinite,
                       {"minimum of 1", "'second'",
                        fmt::format("last good step was {}", t)},
                       [&] { run.step(bad); });
          EXPECT_TRUE(test::same_state(copy_of(run.optimizer->state()), state,
                                       {"skipped_steps"}));
          EXPECT_EQ(run.values(), before);
          EXPECT_EQ(run.optimizer->progress().skipped, t + 1);
          // Training may go on.
          EXPECT_TRUE(run.step(grads).applied);
          spared.step(grads);
          EXPECT_EQ(run.values(), spared.values()) << "stage " << stage;
        }
      }
  });
}

}  // namespace
}  // namespace thinwire::zero::errors_test
