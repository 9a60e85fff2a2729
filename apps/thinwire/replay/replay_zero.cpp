// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "apps/thinwire/replay/families.h"
#include "apps/thinwire/replay/trajectory.h"
#include "thinwire/core/checksum.h"
#include "thinwire/deepspeed/zero_optimizer.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/optim/adam.h"
#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::replay {

using nlohmann::json;

namespace {

DType dtype_of(const json& meta, const char* key) {
  const std::string name = meta.at(key);
  if (name == "fp32") return DType::kFloat32;
  if (name == "fp16") return DType::kFloat16;
  if (name == "bf16") return DType::kBFloat16;
  throw Unsupported(fmt::format("meta.{} \"{}\"", key, name));
}

optim::AdamOptions rule_of(const json& meta) {
  const std::string name = meta.at("optimizer");
  if (name != "Adam" && name != "AdamW")
    throw Unsupported(fmt::format("meta.optimizer \"{}\"", name));
  const json& opts = meta.at("opts");
  require_known(opts, {"lr", "betas", "eps", "weight_decay"}, "meta.opts");
  // torch's own defaults.
  const double decay = name == "AdamW" ? 0.01 : 0;
  optim::AdamOptions rule{.weight_decay = decay,
                          .decoupled_decay = name == "AdamW"};
  optim::AdamGroup common;
  read_numbers(opts, common);
  for (const json& group : meta.at("groups")) {
    require_known(
        group, {"shapes", "lr", "betas", "eps", "weight_decay", "zero_param"},
        "meta.groups key");
    read_numbers(group, rule.groups.emplace_back(common));
  }
  return rule;
}

precision::LossScalerOptions scaler_of(const json& meta) {
  precision::LossScalerOptions scaler;
  const json& fp16 = meta.at("fp16");
  if (fp16.is_null()) {
    scaler.dynamic = false;
    scaler.initial_scale = 1;
    return scaler;
  }
  require_known(fp16,
                {"init_scale", "scale_window", "min_scale", "delayed_shift",
                 "consecutive_hysteresis"},
                "meta.fp16");
  scaler.initial_scale = fp16.at("init_scale").get<double>();
  scaler.window = fp16.at("scale_window").get<std::int64_t>();
  scaler.min_scale = fp16.at("min_scale").get<double>();
  scaler.hysteresis = fp16.at("delayed_shift").get<std::int64_t>();
  scaler.consecutive_hysteresis = fp16.at("consecutive_hysteresis").get<bool>();
  return scaler;
}

// Returns the options of both optimizers. meta.multi_rank_allreduce only
// determines how the reference packs its messages.
template <class Options>
Options options_of(const json& meta) {
  Options options{.stage = meta.at("stage").get<int>(),
                  .dtype = dtype_of(meta, "dtype"),
                  .loss_scale = scaler_of(meta),
                  .communication_dtype = dtype_of(meta, "comm"),
                  .accumulation_dtype = dtype_of(meta, "accum")};
  if (options.stage != 1 && options.stage != 2)
    throw Unsupported(fmt::format("meta.stage {}", options.stage));
  options.exchange.max_grad_norm = meta.at("clip_grad").get<double>();
  options.exchange.bucket_elements =
      meta.at("reduce_bucket_size").get<std::size_t>();
  return options;
}

std::unique_ptr<zero::ShardedOptimizer> make_optimizer(
    const json& meta, comm::Communicator& comm, const ParameterLayout& layout,
    View params, bool follows_deepspeed) {
  const optim::AdamOptions rule = rule_of(meta);
  if (!follows_deepspeed)
    return std::make_unique<zero::ZeroOptimizer>(
        comm, layout,
        [rule](const ParameterLayout& own) {
          return std::make_unique<optim::Adam>(own, rule);
        },
        params, options_of<zero::ZeroOptions>(meta));
  auto options = options_of<deepspeed::ZeroOptions>(meta);
  options.round_robin = meta.at("round_robin").get<bool>();
  options.reduce_scatter = meta.at("reduce_scatter").get<bool>();
  return std::make_unique<deepspeed::ZeroOptimizer>(comm, layout, rule, params,
                                                    options);
}

// One rank's run of a recorded sharded training.
class ZeroRun {
 public:
  ZeroRun(const RecordedCase& recorded, comm::Communicator& comm,
          config::Semantics semantics, Comparison& comparison)
      : recorded_(recorded),
        meta_(recorded.meta()),
        comm_(comm),
        comparison_(comparison),
        rank_(static_cast<std::size_t>(comm.rank())),
        micro_steps_(meta_.at("gas").get<std::size_t>()),
        steps_(meta_.at("steps").get<std::size_t>()),
        is_sliced_(semantics == config::Semantics::kDeepSpeed),
        layout_(layout_of(meta_)),
        slices_(zero::ShardLayout::of(
            layout_, comm.size(),
            {.placement = zero::Placement::kContiguous,
             .round_robin = meta_.at("round_robin").get<bool>()})),
        params_(layout_.size(), dtype_of(meta_, "dtype")) {
    kernels::convert(recorded.array("init.bin").floats({}), params_.view());
    optimizer_ =
        make_optimizer(meta_, comm, layout_, params_.view(), is_sliced_);
  }

  void go() {
    for (std::size_t t = 0; t < steps_; ++t) {
      const double loss_scale = optimizer_->loss_scale();
      for (std::size_t micro = 0; micro < micro_steps_; ++micro)
        backward(t, micro, loss_scale);
      const optim::StepReport report = optimizer_->step();
      compare_arrays(t);
      compare_log(t, report, loss_scale);
    }
    compare_totals();
  }

 private:
  void backward(std::size_t t, std::size_t micro, double loss_scale) {
    const auto recorded =
        recorded_.array("grads.bin").floats({rank_, t, micro});
    std::vector<float> scaled(recorded.begin(), recorded.end());
    const auto factor =
        static_cast<float>(loss_scale / static_cast<double>(micro_steps_));
    for (float& g : scaled) g *= factor;
    for (const json& place : meta_.at("inf_at"))
      if (place.at(0) == t && place.at(1) == rank_)
        scaled.at(0) = std::numeric_limits<float>::infinity();
    Buffer grads(scaled.size(), params_.dtype());
    kernels::convert(scaled, grads.view());

    optimizer_->gradients().begin(
        {.is_first = micro == 0, .is_last = micro + 1 == micro_steps_});
    const auto parameters = layout_.parameters();
    for (std::size_t p = 0; p < parameters.size(); ++p)
      optimizer_->gradients().collect(
          p, grads.view().subview(parameters[p].offset, parameters[p].size));
    optimizer_->gradients().end();
  }

  void compare_log(std::size_t t, const optim::StepReport& report,
                   double loss_scale_before) {
    const json& log = meta_.at("step_log").at(t);
    const auto compare = [&](const char* name, const json& got) {
      comparison_.text({t, name}, got.dump(), log.at(name).dump());
    };
    compare("overflow", !report.applied);
    compare("loss_scale_before", loss_scale_before);
    compare("loss_scale_after", optimizer_->loss_scale());
    // After a skipped step the log has the norm of the last good one.
    if (report.applied) compare("global_grad_norm", report.grad_norm);
    if (meta_.at("fp16").is_null())
      compare("hysteresis", nullptr);
    else
      compare("hysteresis",
              optimizer_->state().common.integer("loss_scale_overflows_left"));
  }

  void compare_arrays(std::size_t t) {
    std::vector<float> widened(params_.size());
    kernels::convert(params_.view(), widened);
    const RecordedArray& want = recorded_.array("params.bin");
    comparison_.covered(want.name);
    comparison_.floats({t, "params"}, widened,
                       want.floats({want.row_of(comm_.rank()), t}));
    are_equal_ = are_equal_ && equal_on_all_ranks();

    for (std::size_t g = 0; g < layout_.num_groups(); ++g) {
      compare_slice(t, g, "fp32_partition", {});
      if (t + 1 < steps_) continue;
      compare_slice(t, g, "final.exp_avg", "exp_avg");
      compare_slice(t, g, "final.exp_avg_sq", "exp_avg_sq");
    }
  }

  // Masters are recorded at every step, states at the end.
  void compare_slice(std::size_t t, std::size_t group, const char* file,
                     std::string_view state) {
    const RecordedArray& want =
        recorded_.array(fmt::format("{}.g{}.bin", file, group));
    comparison_.covered(want.name);
    comparison_.floats(
        {t, want.name}, slice_of(group, state),
        state.empty() ? want.floats({rank_, t}) : want.floats({rank_}));
  }

  // Returns the reference's slice of this rank, with its padding, of the
  // masters or a state. Here any rank may own these values.
  [[nodiscard]] std::vector<float> slice_of(std::size_t group,
                                            std::string_view state) {
    const std::size_t size = slices_.buckets()[group].slice;
    std::vector<float> flat;
    for (const std::size_t p : slices_.order()) {
      const Parameter& parameter = layout_.parameters()[p];
      if (parameter.group != group) continue;
      const std::vector<float> values =
          state.empty()
              ? optimizer_->whole_values().parameter(parameter.name)
              : optimizer_->whole_values().state(parameter.name, state);
      flat.insert(flat.end(), values.begin(), values.end());
    }
    flat.resize(size * static_cast<std::size_t>(comm_.size()));
    const auto begin = flat.begin() + static_cast<std::ptrdiff_t>(rank_ * size);
    return {begin, begin + static_cast<std::ptrdiff_t>(size)};
  }

  [[nodiscard]] bool equal_on_all_ranks() {
    const auto own = static_cast<std::int64_t>(checksum(params_.view()));
    std::vector<std::int64_t> all(static_cast<std::size_t>(comm_.size()));
    comm_.all_gather(std::span(&own, 1), all);
    return std::all_of(all.begin(), all.end(),
                       [&](std::int64_t other) { return other == own; });
  }

  // Compares the totals of the case. Corrected semantics has no slices.
  void compare_totals() {
    const zero::ShardLayout& shards = optimizer_->shards();
    json sizes = json::array();
    json flat_sizes = json::array();
    json final_steps = json::array();
    json order = json::array();
    json padding = json::array();
    for (std::size_t g = 0; g < layout_.num_groups(); ++g) {
      final_steps.push_back(static_cast<double>(optimizer_->progress().steps));
      if (!is_sliced_) continue;
      const std::size_t slice = shards.buckets()[g].slice;
      sizes.push_back(slice);
      flat_sizes.push_back(slice * static_cast<std::size_t>(comm_.size()));
      order.push_back(order_in(g));
    }
    for (int rank = 0; rank < comm_.size() && is_sliced_; ++rank) {
      json of_rank = json::array();
      for (std::size_t g = 0; g < layout_.num_groups(); ++g)
        of_rank.push_back(shards.padding(g, rank));
      padding.push_back(of_rank);
    }
    const auto compare = [&](const char* name, const json& got) {
      comparison_.text({steps_ - 1, name}, got.dump(), meta_.at(name).dump());
    };
    compare("step_final", final_steps);
    compare("partition_size", sizes);
    compare("flat_size", flat_sizes);
    compare("round_robin_indices", order);
    compare("padding_by_rank", padding);
    compare("params_equal_across_ranks", are_equal_);
  }

  // Returns the order of the group's tensors, numbered from 0, in its flat
  // array.
  [[nodiscard]] json order_in(std::size_t group) const {
    const auto parameters = layout_.parameters();
    std::vector<std::size_t> members;
    for (std::size_t p = 0; p < parameters.size(); ++p)
      if (parameters[p].group == group) members.push_back(p);
    json order = json::array();
    for (const std::size_t p : optimizer_->shards().order()) {
      if (parameters[p].group != group) continue;
      order.push_back(std::lower_bound(members.begin(), members.end(), p) -
                      members.begin());
    }
    return order;
  }

  const RecordedCase& recorded_;
  const json& meta_;
  comm::Communicator& comm_;
  Comparison& comparison_;
  std::size_t rank_;
  std::size_t micro_steps_;
  std::size_t steps_;
  bool is_sliced_;
  ParameterLayout layout_;
  zero::ShardLayout slices_;  // the reference's
  Buffer params_;
  std::unique_ptr<zero::ShardedOptimizer> optimizer_;
  bool are_equal_ = true;
};

}  // namespace

void replay_zero(const RecordedCase& recorded, comm::Communicator& comm,
                 config::Semantics semantics, Comparison& comparison) {
  ZeroRun(recorded, comm, semantics, comparison).go();
}

}  // namespace thinwire::replay
