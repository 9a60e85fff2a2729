// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thinwire/comm/agreement.h"
#include "thinwire/core/env.h"
#include "thinwire/engine/leaders.h"
#include "thinwire/optim/parameter_groups.h"
#include "thinwire/plan/measure.h"
#include "thinwire/torch/engine_parts.h"
#include "thinwire/torch/host_bytes.h"
#include "thinwire/torch/host_checkpoint.h"
#include "thinwire/torch/host_gradients.h"
#include "thinwire/torch/host_group.h"
#include "thinwire/torch/module_buffers.h"
#include "thinwire/torch/module_memory.h"
#include "thinwire/torch/module_others.h"

namespace thinwire::torch {

/// Settings of a HostEngine that are not in configuration files.
struct HostEngineOptions {
  GroupOf group_of{};  ///< If empty, all parameters are in group 0.
  std::optional<config::Buffers> buffers{};  ///< If unset, the configuration's.
  /// Bytes of one sum inside a host, in fp32. A larger parameter has its own
  /// sum.
  std::size_t bucket_bytes = std::size_t{25} << 20;
};

/// Engine for hosts with several devices and one rank per device. The device's
/// own process group, such as c10d::ProcessGroupNCCL, sums the gradients of a
/// host on its first rank, the leader. Leaders exchange gradients and step in
/// host memory. The group then sends the parameters to the other ranks, the
/// followers.
///   torch::HostEngine engine(*model, *comm, group, config);
///   ...
///   engine.backward(model->forward(batch));
///   const auto report = engine.step();
/// The module is treated as by torch::Engine. Results equal those of one rank
/// per host that accumulates the batches of its host's ranks. With accumulation
/// each rank adds up its own batches first. 16-bit gradients of a host are
/// added in fp32 and rounded once, unless config.accumulation_dtype is their
/// own type. Only leaders have arrays in host memory. Batch sizes count all
/// ranks. If the program writes parameters, it must write the same on all
/// ranks, and only the leaders' writes count. A step, save or load of a leader
/// may take as long as the communicator's time-out, because followers wait for
/// it.
class HostEngine {
 public:
  /// Collective over `comm`, which must outlive this object. `group` has the
  /// ranks of this host in rank order. Only the engine uses it, and its
  /// time-out must be longer than that of `comm`. Hosts are those of
  /// comm::find_hosts() with config.comm.ranks_per_host. All ranks get rank 0's
  /// trained parameters, and buffers as config::Buffers specifies. Leaders
  /// compute with all cores that they may use, unless config.comm.num_threads
  /// or THINWIRE_NUM_THREADS gives a number.
  ///
  /// Throws Error(kInvalidArgument) on all ranks if parameters or
  /// configurations differ, or if the hosts differ in their number of ranks. It
  /// also throws this error for semantics of DeepSpeed, windows that the
  /// program ends, experts, a hierarchy other than kAuto, and
  /// compressed_under_next_step. Throws Error(kCommFailure) if the group fails.
  HostEngine(const ::torch::nn::Module& module, comm::Communicator& comm,
             c10::intrusive_ptr<c10d::Backend> group,
             const config::Config& config,
             const HostEngineOptions& options = {})
      : module_(module),
        comm_(comm),
        config_(supported(module, comm, config, options)),
        hosts_(comm, std::move(group), device_of(module),
               config.comm.ranks_per_host),
        buffers_(module, comm),
        before_(hosts_.is_leader() ? values_before(module, comm, config)
                                   : std::vector<at::Tensor>()),
        memory_(module, options.group_of, config.precision.dtype, place(),
                keeps_float32(config)),
        others_(module),
        buckets_(host_buckets(memory_.tensors(), options.bucket_bytes)),
        window_(config.batch(comm.size()).accumulation_steps) {
    // The engines of the leaders compare these too, but followers have no
    // engine.
    comm::require_same(comm, "parameter layout and configuration",
                       layout().describe() + config_.describe() +
                           "float32 for " + std::to_string(memory_.num_wide()) +
                           " parameters\n" + "bucket_bytes " +
                           std::to_string(options.bucket_bytes) + "\n" +
                           describe_frozen());
    shared([&] { make_leader(); });
    before_.clear();
    if (config.precision.dtype != DType::kFloat32)
      buffers_.convert(ModuleMemory::scalar_type(config.precision.dtype));
    hand_back();
    buffers_.make_equal(config_.buffers);
    gradients_.emplace(memory_, hosts_, core_.get(), config, buckets_);
    backwards_.emplace(memory_.tensors(),
                       [this](std::size_t index, const at::Tensor& tensor) {
                         gradients_->take(index, tensor);
                       });
  }
  HostEngine(const HostEngine&) = delete;
  HostEngine& operator=(const HostEngine&) = delete;

  /// Computes and collects gradients like Engine::backward(). The last backward
  /// of a window is collective in the host and waits for the sums.
  void backward(const at::Tensor& loss) {
    require_loss(loss);
    require_same_parameters();
    if (in_evaluation_ || in_window_ == window_)
      throw Error(ErrorCode::kFailedPrecondition,
                  in_evaluation_
                      ? "backward: inside an evaluation"
                      : "backward: the window of " + std::to_string(window_) +
                            " backward(s) is complete; call step() first");
    const bool is_last = in_window_ + 1 == window_;
    if (is_last && core_) core_->begin_backward();
    gradients_->begin(is_last);
    backwards_->run(
        loss, loss_factor_, [this] { gradients_->finish(); },
        [&](std::string_view reason) {
          const bool has_sent = gradients_->has_sent();
          gradients_->cancel();
          in_window_ = 0;
          if (has_sent) {
            comm_.give_up(reason);
            throw Error(
                ErrorCode::kCommFailure,
                "gradients had been sent before backward failed, so this "
                "rank has given up: " +
                    std::string(reason));
          }
          if (is_last && core_) core_->cancel_backward(reason);
        });
    ++in_window_;
    if (is_last && core_)
      hosts_.telling_others([this] { core_->end_backward(); });
  }
  /// Steps after gradient_accumulation_steps backwards; before, does nothing.
  /// Collective at boundaries. Every rank gets the leader's report, in which
  /// nonfinite_rank is the leader of the host with a non-finite gradient. In
  /// messages of the leaders' engine, such as that of Error(kNonFinite),
  /// numbers of ranks are numbers of hosts, from 0.
  engine::EngineReport step() {
    require_same_parameters();
    if (in_evaluation_ || in_window_ == 0)
      throw Error(ErrorCode::kFailedPrecondition,
                  in_evaluation_ ? "step: inside an evaluation"
                                 : "step: no backward since the last step");
    engine::EngineReport report;
    report.steps = steps_;
    report.loss_scale = loss_scale_;
    report.phase = phase_;
    report.at_boundary = in_window_ == window_;
    report.applied = report.at_boundary;
    if (!report.at_boundary) return report;
    in_window_ = 0;
    const auto of_leader = [&] {
      report = core_->step(memory_.final_range());
      if (report.nonfinite_rank >= 0)
        report.nonfinite_rank = hosts_.leader_of(report.nonfinite_rank);
    };
    optim::StepReport& of_step = report;
    shared(of_leader, of_step, report.learning_rate, report.backward_seconds,
           report.late_elements, report.waited_for);
    report.steps = steps_;
    hand_back();
    return report;
  }
  /// Returns the mean over all ranks like engine::Engine::mean().
  [[nodiscard]] double mean(double value) {
    return engine::mean(comm_, steps_, value);
  }
  /// Returns the mean over all ranks of a tensor with one element.
  [[nodiscard]] double mean(const at::Tensor& value) {
    return mean(number_in(value));
  }

  /// Call the functions of engine::Engine on the leader. On followers the first
  /// two only check the rate.
  void set_learning_rate(std::size_t group, double learning_rate) {
    optim::require_learning_rate(learning_rate);
    if (core_) core_->learning_rates().set(group, learning_rate);
  }
  void set_learning_rate(double learning_rate) {
    optim::require_learning_rate(learning_rate);
    if (core_) core_->learning_rates().set(learning_rate);
  }
  void set_schedule(config::LearningRateFunction schedule) {
    if (core_) core_->learning_rates().set_schedule(std::move(schedule));
  }

  using Evaluation = EvaluationScope<HostEngine>;
  /// Begins an evaluation. Collective.
  [[nodiscard]] Evaluation evaluation() { return Evaluation(*this); }

  /// Save and load like torch::Engine. Collective. A checkpoint of leaders
  /// loads on any number of ranks, also by a torch::Engine. It includes the
  /// values that followers pass as extra.own. LoadOptions::accept is called on
  /// leaders.
  checkpoint::SaveReport save(const std::string& root,
                              const checkpoint::Extra& extra = {},
                              const checkpoint::SaveOptions& options = {}) {
    require_same_parameters();
    require_between_windows("save");
    HostBytes own;
    StateDict of_rank;
    of_rank.put_all("", extra.own);
    own(of_rank);
    const std::vector<std::string> of_host = hosts_.gather(own.text());
    checkpoint::SaveReport report;
    const auto of_leader = [&] {
      checkpoint::Extra all;
      all.common.put_all("", extra.common);
      all.own = own_of_host(hosts_.ranks(), of_host);
      report = core_->save(root, all, options);
    };
    shared(of_leader, report);
    return report;
  }
  checkpoint::LoadReport load(const std::string& path,
                              const checkpoint::LoadOptions& options = {}) {
    return std::move(
        *loaded("load", [&] { return core_->load(path, options); }));
  }
  std::optional<checkpoint::LoadReport> resume(
      const std::string& path, const checkpoint::LoadOptions& options = {}) {
    return loaded("resume", [&] { return core_->resume(path, options); });
  }

  [[nodiscard]] bool is_leader() const { return hosts_.is_leader(); }
  /// Returns the leader's engine, for inspection; null on followers.
  [[nodiscard]] const engine::Engine* leader() const noexcept {
    return core_.get();
  }
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  [[nodiscard]] double loss_scale() const noexcept { return loss_scale_; }
  [[nodiscard]] const ParameterLayout& layout() const noexcept {
    return memory_.layout();
  }

 private:
  // Collective.
  static config::Config supported(const ::torch::nn::Module& module,
                                  comm::Communicator& comm,
                                  config::Config config,
                                  const HostEngineOptions& options) {
    if (options.buffers) config.buffers = *options.buffers;
    comm::require_everywhere(comm, [&] {  // before the module changes
      config.validate(comm.size());
      const auto require = [](bool holds, const char* text) {
        if (!holds)
          throw Error(ErrorCode::kInvalidArgument,
                      std::string("HostEngine: ") + text);
      };
      require(config.semantics == config::Semantics::kCorrected,
              "semantics must be corrected, got deepspeed");
      require(config.managed_gradient_accumulation,
              "managed_gradient_accumulation must be true, got false");
      require(config.experts().empty(), "groups must have no communicator");
      require(config.comm.hierarchy == config::Hierarchy::kAuto,
              "comm.hierarchy must be auto, got flat or by_host");
      require(!config.comm.compressed_under_next_step,
              "comm.compressed_under_next_step must be false, got true");
      require_any(trainable_parameters(module));
    });
    return config;
  }
  static at::Device device_of(const ::torch::nn::Module& module) {
    return trainable_parameters(module).front().tensor.device();
  }
  // Returns the configuration of the leaders' engine.
  [[nodiscard]] config::Config of_leaders() const {
    return engine::config_of_leaders(config_, comm_.size(), hosts_.size());
  }
  [[nodiscard]] Gradients place() const {
    if (!is_leader()) return Gradients::kOnDevice;
    return engine::keeps_gradients(of_leaders(), comm_.size() / hosts_.size())
               ? Gradients::kInPlace
               : Gradients::kReleased;
  }
  void make_leader() {
    comm::Communicator& leaders = hosts_.between();
    config::Config config = of_leaders();
    if (config.comm.num_threads == 0 && env::num_threads() == 0) {
      const plan::Processors machine = plan::measure_processors(leaders, 0);
      config.comm.num_threads =
          std::clamp(machine.cores / std::max(machine.ranks, 1), 1, 1024);
    }
    core_ = make_core(leaders, memory_, config, before_);
    core_->set_accumulation_boundary(true);
    core_->set_others([this] { return others_.describe(); });
  }
  // Runs `action` on the leader. All ranks of the host get its `values` and the
  // values of its engine that they keep.
  template <class... Values>
  void shared(const std::function<void()>& action, Values&... values) {
    HostBytes said(hosts_.shared([&] {
      action();
      loss_factor_ = core_->loss_factor();
      loss_scale_ = core_->loss_scale();
      const optim::Progress progress = core_->optimizer().progress();
      steps_ = progress.steps;
      phase_ = progress.phase;
      HostBytes bytes;
      bytes(values..., loss_factor_, loss_scale_, steps_, phase_);
      return bytes.text();
    }));
    said(values..., loss_factor_, loss_scale_, steps_, phase_);
  }
  void require_same_parameters() {
    backwards_->require_own();
    memory_.check_parameters();
    memory_.take_in_written();
    gradients_->check();
    require_unchanged(trained_parameters(module_, config_), memory_);
  }
  // Throws Error(kFailedPrecondition) inside a window and in an evaluation.
  void require_between_windows(const char* call) const {
    if (in_evaluation_ || in_window_ > 0)
      throw Error(ErrorCode::kFailedPrecondition,
                  std::string(call) +
                      (in_evaluation_ ? ": inside an evaluation"
                                      : ": inside a window of accumulation; "
                                        "call step() first"));
  }
  friend Evaluation;
  void begin_evaluation() {
    require_same_parameters();
    require_between_windows("evaluation");
    memory_.wait();
    shared([&] { core_->begin_evaluation(); });
    hand_back();
    buffers_.make_equal(config_.buffers);
    in_evaluation_ = true;
  }
  void end_evaluation() {
    if (core_) core_->end_evaluation();
    in_evaluation_ = false;
  }
  // Loads on the leader. Returns nothing if there is no checkpoint.
  using Load = std::function<std::optional<checkpoint::LoadReport>()>;
  std::optional<checkpoint::LoadReport> loaded(const char* call,
                                               const Load& load) {
    require_same_parameters();
    require_between_windows(call);
    memory_.wait();
    std::optional<checkpoint::LoadReport> report;
    const auto of_leader = [&] {
      report = load();
      if (report) others_.write_back();
    };
    shared(of_leader, report);
    if (!report) return report;
    hand_back();
    hand_back_others();
    divide_own(*report, comm_.rank());
    return report;
  }
  // Sends the leader's parameters to all ranks of the host.
  void hand_back() {
    memory_.send_parameters();
    const ::torch::NoGradGuard no_grad;
    for (const auto& bucket : buckets_) {
      std::vector<at::Tensor> parts;
      for (const std::size_t k : bucket)
        parts.push_back(memory_.tensors()[k].detach().reshape({-1}));
      at::Tensor flat = at::cat(parts);
      if (flat.numel() == 0) continue;
      hosts_.broadcast(flat);
      if (is_leader()) continue;
      std::int64_t at = 0;
      for (const std::size_t k : bucket) {
        const at::Tensor to = memory_.tensors()[k].detach();
        to.copy_(flat.narrow(0, at, to.numel()).view(to.sizes()));
        at += to.numel();
      }
    }
  }
  // Sends the tensors of a checkpoint that are not parameters.
  void hand_back_others() {
    const ::torch::NoGradGuard no_grad;
    const at::Device device = memory_.staging()->device();
    const auto send = [&](const at::Tensor& tensor) {
      if (!ModuleOthers::is_saved(tensor) || tensor.numel() == 0) return;
      at::Tensor flat = tensor.detach().to(device).contiguous();
      hosts_.broadcast(flat);
      if (!is_leader()) tensor.detach().copy_(flat);
    };
    for (const auto& item : module_.named_parameters())
      if (!item.value().requires_grad()) send(item.value());
    for (const auto& item : module_.named_buffers()) send(item.value());
  }
  std::string describe_frozen() const {
    std::string text;
    for (const auto& item : module_.named_parameters())
      if (!item.value().requires_grad())
        text += "frozen " + item.key() + " " +
                c10::toString(item.value().scalar_type()) + " " +
                c10::str(item.value().sizes()) + "\n";
    return text;
  }

  const ::torch::nn::Module& module_;
  comm::Communicator& comm_;
  config::Config config_;
  HostGroup hosts_;
  ModuleBuffers buffers_;
  std::vector<at::Tensor> before_;  // of the leader, until it has masters
  ModuleMemory memory_;
  std::unique_ptr<engine::Engine> core_{};  // of the leader
  ModuleOthers others_;
  std::vector<std::vector<std::size_t>> buckets_;
  std::optional<HostGradients> gradients_{};
  std::optional<Backwards> backwards_{};
  std::int64_t window_ = 1;     // backwards of a step
  std::int64_t in_window_ = 0;  // backwards so far
  bool in_evaluation_ = false;
  // Copies of values of the leader's engine.
  double loss_factor_ = 1;
  double loss_scale_ = 1;
  std::int64_t steps_ = 0;
  optim::Phase phase_{};
};

}  // namespace thinwire::torch
