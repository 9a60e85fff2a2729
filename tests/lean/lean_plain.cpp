// SPDX-License-Identifier: Apache-2.0
#include "lean/lean_plain.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <utility>

#include "lean/lean_naive.h"
#include "lean/lean_support.h"
#include "thinwire/zero/shard_layout.h"

namespace thinwire::test {

namespace {

using naive::Floats;
using Options = lean::LeanOnebitAdamOptions;

constexpr std::int64_t kSteps = 10;

Options with_groups() {
  return with_second_group(
      Options{.learning_rate = 0.02, .weight_decay = 0.01});
}

}  // namespace

std::string LeanRanks::name() const {
  if (per_host == 1) return fmt::format("w{}", world);
  return fmt::format("{}x{}{}", workers(), per_host,
                     placing == Placing::kBlocks ? "" : "_round_robin");
}

void run_lean_ranks(const LeanRanks& ranks,
                    const std::function<void(comm::Communicator&)>& body) {
  run_ranks("local", ranks.world, [&](comm::Communicator& flat) {
    if (ranks.per_host == 1) return body(flat);
    const auto comm = flat.by_host(
        hosts_of(ranks.world, ranks.per_host, ranks.placing, flat.rank()));
    body(*comm);
  });
}

std::vector<LeanVariant> lean_variants() {
  const auto with = [](auto change) {
    Options o{.learning_rate = 0.02};
    change(o);
    return o;
  };
  Options masks = with_groups();
  for (std::size_t g = 0; g < 2; ++g)
    masks.groups[g].exp_avg_mask = every_third_masked(late_layout(), g);
  constexpr DType kF32 = DType::kFloat32;
  constexpr DType kB16 = DType::kBFloat16;
  return {
      {"plain", kF32, with([](auto&) {})},
      {"bf16", kB16, with([](auto&) {})},
      {"four_bits", kF32, with([](auto& o) { o.denominator_bits = 4; })},
      {"bf16_four_bits", kB16, with([](auto& o) {
         o.denominator_bits = 4;
         o.weight_decay = 0.1;
       })},
      {"fp32_residuals", kB16,
       with([](auto& o) { o.compression.residual_dtype = DType::kFloat32; })},
      {"decay", kB16, with([](auto& o) { o.weight_decay = 0.1; })},
      {"groups", kF32, with_groups()},
      {"masks", kB16, masks},
      {"clipped", kF32,
       with([](auto& o) { o.compression.exchange.max_grad_norm = 0.5; })},
      {"lagged", kF32, with([](auto& o) {
         o.compression.exchange.max_grad_norm = 0.5;
         o.compression.exchange.lagged_clipping = true;
       })},
      {"no_correction", kF32, with([](auto& o) { o.bias_correction = false; })},
      {"eps_inside", kF32, with([](auto& o) {
         o.epsilon_inside_sqrt = true;
         o.epsilon = 1e-3;
       })},
      {"no_floor", kF32, with([](auto& o) { o.compression.denom_floor = 0; })},
      {"high_floor", kF32,
       with([](auto& o) { o.compression.denom_floor = 1.5; })},
      {"verified", kB16,
       with([](auto& o) { o.compression.exchange.verify_every = 1; })},
      {"small_buckets", kB16,
       with([](auto& o) { o.compression.exchange.bucket_elements = 1; })},
      {"threads", kB16,
       with([](auto& o) { o.compression.exchange.num_threads = 3; })}};
}

namespace {

// What one rank saw of a step.
struct Seen {
  optim::StepReport report;
  Floats full, params;
};

struct Run {
  std::vector<std::vector<Seen>> steps;  // by step and rank
  naive::Lean::Begin begin{0, {}, {}, {}, naive::Gradients(naive::Setup())};
  std::vector<int> ranks;  // by host: of comm::Hosts
};

// The exact steps, those of ZeRO-1; the last one is what plain loops begin
// with.
void expect_exact(std::int64_t t, int rank, const Seen& seen, ZeroRun& twin,
                  std::vector<float> grads, Run& result) {
  const auto report = twin.optimizer->step(twin.params.view(), grads);
  EXPECT_EQ(seen.report.grad_norm, report.grad_norm);
  EXPECT_EQ(seen.report.clip_factor, report.clip_factor);
  EXPECT_EQ(seen.report.phase, optim::Phase::kExact);
  const auto masters = twin.masters();
  EXPECT_TRUE(same_bits<float>(seen.full, masters));
  if (t < kLateFreeze) {
    EXPECT_TRUE(same_bits<float>(seen.params, twin.values()));
    return;
  }
  const auto m = twin.state("exp_avg");
  const auto v = twin.state("exp_avg_sq");
  if (rank != 0) return;
  result.begin.t = t;
  result.begin.params = masters;
  result.begin.m = m;
  result.begin.v = v;
}

Run run(const LeanRanks& ranks, const ParameterLayout& layout,
        const LeanVariant& variant, const NamedGradients& gradients) {
  Run result;
  result.steps.assign(kSteps,
                      std::vector<Seen>(static_cast<std::size_t>(ranks.world)));
  run_lean_ranks(ranks, [&](comm::Communicator& comm) {
    LeanRun own(comm, layout, variant.dtype, variant.options);
    auto twin = exact_twin(comm, layout, variant.dtype, variant.options);
    if (comm.rank() == 0) result.ranks = comm.hosts().ranks;
    for (std::int64_t t = 1; t <= kSteps; ++t) {
      const auto grads = gradients.of(layout, t, comm.rank());
      Seen& seen = result.steps[static_cast<std::size_t>(t - 1)]
                               [static_cast<std::size_t>(comm.rank())];
      Buffer travelling =
          rounded(grads, t > kLateFreeze ? variant.gradients : DType::kFloat32);
      seen.report = own.optimizer->step(own.params.view(), travelling.view());
      seen.full = own.full();
      seen.params = own.values();
      EXPECT_EQ(own.optimizer->progress().steps, t);
      EXPECT_EQ(own.optimizer->freeze()->frozen_at(),
                t < kLateFreeze ? 0 : kLateFreeze);
      if (t <= kLateFreeze)
        expect_exact(t, comm.rank(), seen, twin, grads, result);
    }
  });
  return result;
}

// Rounded half away from zero, as the upper half of a split is.
Floats upper_halves(const Floats& values, DType dtype) {
  Floats upper;
  for (const float value : values) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    upper.push_back(dtype == DType::kFloat32
                        ? value
                        : std::bit_cast<float>((bits + 0x8000u) & 0xffff0000u));
  }
  return upper;
}

std::vector<Floats> of_ranks(const LeanRanks& ranks,
                             const NamedGradients& gradients, DType dtype,
                             std::int64_t t) {
  const ParameterLayout layout = late_layout();
  std::vector<Floats> grads;
  for (int r = 0; r < ranks.world; ++r)
    grads.push_back(
        floats_of(rounded(gradients.of(layout, t, r), dtype).view()));
  return grads;
}

// By host, their means, in the order of its ranks and not rounded.
std::vector<Floats> of_workers(std::vector<Floats> grads,
                               const std::vector<int>& ranks,
                               std::size_t per_host) {
  if (ranks.empty()) return grads;
  std::vector<Floats> means;
  for (std::size_t first = 0; first < ranks.size(); first += per_host) {
    Floats mean = grads[static_cast<std::size_t>(ranks[first])];
    for (std::size_t i = 0; i < mean.size(); ++i) {
      for (std::size_t l = first + 1; l < first + per_host; ++l)
        mean[i] = mean[i] + grads[static_cast<std::size_t>(ranks[l])][i];
      mean[i] = mean[i] * (1.0f / static_cast<float>(per_host));
    }
    means.push_back(std::move(mean));
  }
  return means;
}

// Who averages which cells: local rank l what all with this l own.
std::vector<naive::Gradients::Averaged> averaged_by(
    const LeanRanks& ranks, const Options& options,
    const std::vector<int>& in_hosts) {
  const ParameterLayout layout = late_layout();
  const auto per_host = static_cast<std::size_t>(ranks.per_host);
  const auto shards = zero::ShardLayout::of(
      layout, ranks.world,
      {.bucket_elements = options.compression.exchange.bucket_elements,
       .hosts = hosts_of(ranks.world, ranks.per_host, ranks.placing, 0)});
  const ParameterLayout cells = naive::cells_as_parameters(layout);
  std::vector<naive::Gradients::Averaged> all(
      static_cast<std::size_t>(ranks.world));
  for (std::size_t at = 0; at < in_hosts.size(); ++at) {
    auto& own = all[static_cast<std::size_t>(in_hosts[at])];
    own.host = at / per_host;
    for (const Parameter& cell : cells.parameters())
      for (const zero::ShardBucket& bucket : shards.buckets())
        for (std::size_t l = at % per_host; l < in_hosts.size();
             l += per_host) {
          const Range& piece =
              bucket.pieces[static_cast<std::size_t>(in_hosts[l])];
          if (piece.offset <= cell.offset && cell.offset < piece.end())
            own.ranges.push_back({cell.offset, cell.size});
        }
  }
  return all;
}

void expect_seen(const Seen& seen, const naive::Lean& naive, DType dtype,
                 bool is_compressed) {
  ASSERT_TRUE(seen.report.applied);
  ASSERT_TRUE(same_bits<float>(seen.full, naive.params));
  ASSERT_TRUE(same_bits<float>(seen.params, upper_halves(naive.params, dtype)));
  if (!is_compressed) return;
  ASSERT_EQ(seen.report.phase, optim::Phase::kCompressed);
  ASSERT_EQ(seen.report.masked, naive.masked);
  ASSERT_EQ(seen.report.heavy, naive.heavy);
  ASSERT_EQ(seen.report.revived, naive.revived);
}

}  // namespace

void expect_plain_loops(const LeanRanks& ranks, const NamedGradients& gradients,
                        const LeanVariant& variant) {
  const ParameterLayout layout = late_layout();
  LeanVariant own = variant;
  own.options.freeze.step = kLateFreeze;
  if (own.options.compression.exchange.bucket_elements == 0)
    own.options.compression.exchange.bucket_elements = 1 << 20;
  Run got = run(ranks, layout, own, gradients);
  naive::Gradients seen(naive::setup_of(ranks.workers(), layout, own.options));
  for (std::int64_t t = 1; t <= kLateFreeze; ++t) {
    const auto grads = of_ranks(ranks, gradients, DType::kFloat32, t);
    if (got.ranks.empty())
      (void)seen.exact(grads);
    else
      seen.exact_by_host(grads, got.ranks);
  }
  seen.set_averaged(got.ranks.empty()
                        ? std::vector<naive::Gradients::Averaged>()
                        : averaged_by(ranks, own.options, got.ranks));
  got.begin.gradients = std::move(seen);
  naive::Lean naive(ranks.workers(), layout, own.options, std::move(got.begin));
  for (std::int64_t t = kLateFreeze; t <= kSteps; ++t) {
    const bool is_compressed = t > kLateFreeze;
    if (is_compressed) {
      ASSERT_TRUE(naive.step(
          of_workers(of_ranks(ranks, gradients, own.gradients, t), got.ranks,
                     static_cast<std::size_t>(ranks.per_host))));
    }
    for (const Seen& of_rank : got.steps[static_cast<std::size_t>(t - 1)]) {
      expect_seen(of_rank, naive, own.dtype, is_compressed);
      ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "step " << t;
    }
  }
}

}  // namespace thinwire::test
