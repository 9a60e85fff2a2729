// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/replay/trajectory.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/thinwire/replay/driven_optimizer.h"
#include "apps/thinwire/replay/recorded_wire.h"
#include "deepspeed/compressed_all_reduce.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/optim/data_parallel.h"

namespace thinwire::replay {

using nlohmann::json;

namespace {

// One rank's run of a recorded trajectory.
class Run {
 public:
  Run(const RecordedCase& recorded, comm::Communicator& comm,
      config::Semantics semantics, Comparison& comparison,
      const TrajectoryKind& kind)
      : recorded_(recorded),
        meta_(recorded.meta()),
        comm_(comm),
        comparison_(comparison),
        rank_(static_cast<std::size_t>(comm.rank())),
        kind_(kind),
        driven_(meta_, comm, semantics, kind,
                recorded.array("init.bin").floats({})),
        layout_(driven_.layout()) {
    tensors_ = units_of(semantics);
    std::vector<Range> compressed;
    for (const Range& unit : tensors_)
      if (!stays_exact(unit)) compressed.push_back(unit);
    recorder_ = std::make_unique<WireRecorder>(
        tensors_, semantics == config::Semantics::kDeepSpeed
                      ? blocks_per_unit(tensors_, compressed, comm.size())
                      : blocks_of(tensors_, layout_of(compressed)));
  }

  void go() {
    driven_.make(*recorder_);
    if (driven_.begins_with_zeros())
      compare_wire(comparison_, 0, recorder_->take(), meta_.at("init_wire"),
                   {});
    const auto steps = meta_.at("steps").get<std::size_t>();
    for (std::size_t t = 0; t < steps; ++t) step(t);
    for (const char* file : {"params.bin", "params16.bin", "wire.bin"})
      if (recorded_.has(file)) comparison_.covered(file);
  }

 private:
  [[nodiscard]] exchange::BlockLayout layout_of(
      std::span<const Range> compressed) const {
    return {compressed,
            {.world_size = comm_.size(),
             .bucket_elements = exchange::bucket_elements(
                 optim::ExchangeOptions().bucket_elements, layout_.size(),
                 comm_.hosts(), 1)}};
  }

  // Returns the ranges with separate scales: every tensor, or one padded range
  // of all.
  [[nodiscard]] std::vector<Range> units_of(config::Semantics semantics) const {
    std::vector<Range> units;
    for (const Parameter& p : layout_.parameters())
      units.push_back({p.offset, p.size});
    if (!kind_.is_fused || semantics != config::Semantics::kDeepSpeed)
      return units;
    return {{0, deepspeed::padded_size(layout_.size(), comm_.size())}};
  }

  [[nodiscard]] bool stays_exact(const Range& unit) const {
    return !kind_.exact_groups.empty() && unit.size != 0 &&
           kind_.exact_groups[layout_.parameter_at(unit.offset).group];
  }

  // Returns this rank's log. Logs of other ranks exist only if they differ.
  [[nodiscard]] const json& log_of(std::size_t t) const {
    if (rank_ == 0 || !meta_.contains("step_log_other_ranks"))
      return meta_.at("step_log").at(t);
    return meta_.at("step_log_other_ranks").at(rank_ - 1).at(t);
  }

  void compare_params(std::size_t t, const char* name,
                      std::span<const float> got) {
    const RecordedArray& want = recorded_.array(std::string(name) + ".bin");
    comparison_.floats({t, name}, got,
                       want.floats({want.row_of(comm_.rank()), t}));
  }

  void compare_wrapper(std::size_t t, const optim::StepReport& report,
                       double loss_scale_before) {
    const json& log = log_of(t);
    StepLog{comparison_, t, log}.flag("overflow", !report.applied);
    const auto number = [&](const char* name, double got) {
      comparison_.text({t, name}, json(got).dump(), log.at(name).dump());
    };
    number("loss_scale_before", loss_scale_before);
    number("loss_scale_after", *driven_.loss_scale());
    // After a skipped step the log has the norm of the last good one.
    if (report.applied) number("global_grad_norm", report.grad_norm);
    compare_params(t, "params16", driven_.params16());
  }

  void step(std::size_t t) {
    const json& log = meta_.at("step_log").at(t);
    const StepLog compared{comparison_, t, log};
    optim::Optimizer& optimizer = driven_.optimizer();
    for (std::size_t g = 0; g < log.at("lr").size(); ++g)
      optimizer.groups().set_learning_rate(g, log.at("lr")[g].get<double>());
    recorder_->take();
    const auto loss_scale = driven_.loss_scale();
    const optim::StepReport report =
        driven_.step(t, recorded_.array("grads.bin").floats({rank_, t}));

    if (loss_scale) compare_wrapper(t, report, *loss_scale);
    compare_params(t, "params", driven_.masters());
    compared.flag("averaged", report.phase == optim::Phase::kExact);
    const auto wire = recorded_.has("wire.bin")
                          ? recorded_.array("wire.bin").raw({rank_})
                          : std::span<const std::uint8_t>();
    compare_wire(comparison_, t, recorder_->take(), log.at("wire"), wire);
    const StateDict state = copy_of(optimizer.state());
    kind_.compare_log(compared, state);
    compare_state(t, state);
    for (const json& state_step : log.at("state_step"))
      comparison_.text({t, "state_step"},
                       fmt::format("{}", optimizer.progress().steps),
                       state_step.dump());
    if (resumes_after(t)) resume();
    compared.flag("averaged_next",
                  driven_.optimizer().progress().phase == optim::Phase::kExact);
  }

  [[nodiscard]] bool resumes_after(std::size_t t) const {
    const json& after = meta_.at("resume_after");
    return after.is_array() &&
           std::find(after.begin(), after.end(), json(t)) != after.end();
  }

  // Loads rank 0's state and parameters into a new optimizer on all ranks.
  void resume() {
    StateDict state = copy_of(driven_.optimizer().state());
    for (const char* name :
         {"exp_avg", "exp_avg_sq", "exp_avg_sq_fresh", "denominator"}) {
      if (!state.has_array(name)) continue;
      const auto values = state.array(name).as<float>();
      std::vector<float> copy(values.begin(), values.end());
      comm_.broadcast(copy, 0);
      state.put(name, copy);
    }
    if (driven_.loss_scale())
      throw Unsupported("meta.resume_after with a 16-bit wrapper");
    comm_.broadcast(driven_.params(), 0);
    driven_.make(*recorder_);
    driven_.optimizer().load_state_dict(state);
  }

  // Returns the residual in the recordings' order: every tensor, padded, with
  // zeros for tensors that never have one in the library.
  [[nodiscard]] std::vector<float> residual(const StateDict& state,
                                            const char* name,
                                            const json& lens) const {
    std::span<const float> ours;
    if (state.has_array(name)) ours = state.array(name).as<float>();
    std::vector<float> all;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const auto len = lens.at(i).get<std::size_t>();
      const bool kept = !stays_exact(tensors_[i]) && ours.size() >= len;
      if (kept) {
        all.insert(all.end(), ours.begin(),
                   ours.begin() + static_cast<std::ptrdiff_t>(len));
        ours = ours.subspan(len);
      } else {
        all.insert(all.end(), len, 0.0f);
      }
    }
    return all;
  }

  void compare_state(std::size_t t, const StateDict& state) {
    for (const auto& [field, about] : meta_.at("state").items()) {
      if (field.ends_with("_partial")) {
        compare_partial(t, state, field, about);
        continue;
      }
      const std::string file = "state." + field + ".bin";
      comparison_.covered(file);
      const json& at = about.at("at");
      const auto found = std::find(at.begin(), at.end(), json(t));
      if (found == at.end()) continue;
      const RecordedArray& want = recorded_.array(file);
      const auto row =
          want.floats({want.row_of(comm_.rank()),
                       static_cast<std::size_t>(found - at.begin())});
      if (field == "worker_error" || field == "server_error")
        comparison_.floats(
            {t, field}, residual(state, field.c_str(), about.at("lens")), row);
      else
        compare_array(t, state, field, row);
    }
  }

  // An array that corrected semantics does not keep is empty, and differs.
  void compare_array(std::size_t t, const StateDict& state,
                     const std::string& field, std::span<const float> row) {
    std::span<const float> got;
    if (state.has_array(field)) got = state.array(field).as<float>();
    comparison_.floats({t, field}, got, row);
  }

  // Compares a residual that only some tensors have. The recording has only its
  // zeros.
  void compare_partial(std::size_t t, const StateDict& state,
                       const std::string& field, const json& records) {
    const std::string name = field.substr(0, field.rfind("_partial"));
    for (const json& record : records) {
      if (record.at("t") != t) continue;
      if (!record.at("all_zero").get<bool>())
        throw Unsupported(
            fmt::format("meta.state \"{}\" that is not all zero "
                        "but has no array",
                        field));
      if (!state.has_array(name)) continue;
      const auto values = state.array(name).as<float>();
      comparison_.floats({t, field}, values, std::vector<float>(values.size()));
    }
  }

  const RecordedCase& recorded_;
  const json& meta_;
  comm::Communicator& comm_;
  Comparison& comparison_;
  std::size_t rank_;
  const TrajectoryKind& kind_;
  DrivenOptimizer driven_;
  const ParameterLayout& layout_;
  std::vector<Range> tensors_;
  std::unique_ptr<WireRecorder> recorder_;
};

}  // namespace

ParameterLayout layout_of(const json& meta) {
  std::vector<ParameterSpec> specs;
  for (const json& tensor : meta.at("tensors"))
    specs.push_back({fmt::format("tensor.{}", specs.size()),
                     tensor.at("shape").get<std::vector<std::size_t>>(),
                     tensor.at("group").get<std::size_t>()});
  return ParameterLayout::of(std::move(specs));
}

void read_number(const json& from, const char* key,
                 std::optional<double>& field) {
  if (from.contains(key)) field = from.at(key).get<double>();
}

void read_numbers(const json& from, optim::AdamGroup& group) {
  read_number(from, "lr", group.learning_rate);
  read_number(from, "eps", group.epsilon);
  read_number(from, "weight_decay", group.weight_decay);
  if (from.contains("betas")) {
    group.beta1 = from.at("betas").at(0).get<double>();
    group.beta2 = from.at("betas").at(1).get<double>();
  }
}

void require_known(const json& object, const std::vector<std::string>& keys,
                   const char* what) {
  for (const auto& [key, value] : object.items())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      throw Unsupported(fmt::format("{} \"{}\"", what, key));
}

void StepLog::flag(const char* name, bool got) const {
  comparison.text({step, name}, got ? "true" : "false", log.at(name).dump());
}

void StepLog::numbers(const char* name, std::span<const double> got) const {
  const json& want = log.at(name);
  // The recording has no value for this step.
  if (want.is_null() || want.empty()) return;
  comparison.text({step, name}, json(got).dump(), want.dump());
}

void StepLog::integers(const char* name,
                       std::span<const std::int64_t> got) const {
  comparison.text({step, name}, json(got).dump(), log.at(name).dump());
}

void replay_trajectory(const RecordedCase& recorded, comm::Communicator& comm,
                       config::Semantics semantics, Comparison& comparison,
                       const TrajectoryKind& kind) {
  Run(recorded, comm, semantics, comparison, kind).go();
}

}  // namespace thinwire::replay
