// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/replay/driven_optimizer.h"

#include <fmt/format.h>

#include <limits>

#include "thinwire/kernels/cast.h"

namespace thinwire::replay {

using nlohmann::json;

namespace {

std::optional<deepspeed::Fp16Options> wrapper_of(const json& meta,
                                                 config::Semantics semantics) {
  const std::string drive = meta.at("drive");
  if (drive == "wrapper_init" || drive == "fp32_engine") return std::nullopt;
  deepspeed::Fp16Options options;
  if (drive == "fp16_unfused")
    options.wrapper = deepspeed::Fp16Wrapper::kUnfused;
  else if (drive != "fp16_fused")
    throw Unsupported(fmt::format("meta.drive \"{}\"", drive));
  if (semantics != config::Semantics::kDeepSpeed)
    throw Unsupported(
        fmt::format("meta.drive \"{}\" with corrected semantics, "
                    "which has no such wrapper",
                    drive));
  const json& fp16 = meta.at("fp16");
  require_known(fp16, {"init_scale", "scale_window", "min_scale", "clip_grad"},
                "meta.fp16");
  options.loss_scale.initial_scale = fp16.at("init_scale").get<double>();
  options.loss_scale.window = fp16.at("scale_window").get<std::int64_t>();
  options.loss_scale.min_scale = fp16.at("min_scale").get<double>();
  options.max_grad_norm = fp16.value("clip_grad", 0.0);
  return options;
}

}  // namespace

DrivenOptimizer::DrivenOptimizer(const json& meta, comm::Communicator& comm,
                                 config::Semantics semantics,
                                 const TrajectoryKind& kind,
                                 std::span<const float> params)
    : meta_(meta),
      comm_(comm),
      kind_(kind),
      wrapper_options_(wrapper_of(meta, semantics)),
      layout_(layout_of(meta)),
      wrapped_(layout_),
      params_(params.begin(), params.end()) {
  begins_with_zeros_ = meta.at("drive") != "fp32_engine" &&
                       semantics == config::Semantics::kDeepSpeed;
  if (!wrapper_options_) return;
  wrapped_ = deepspeed::wrapped_layout(layout_, wrapper_options_->wrapper);
  params16_.resize(params_.size());
  kernels::convert(params_, params16_);
}

void DrivenOptimizer::make(WireRecorder& recorder) {
  alone_ = kind_.make(comm_, wrapped_);
  std::visit(
      [&](const auto& optimizer) {
        optimizer->set_observer(&recorder);
        inner_ = optimizer.get();
      },
      alone_);
  if (wrapper_options_) {  // only with deepspeed semantics
    wrapper_ = std::make_unique<deepspeed::Fp16Optimizer>(
        comm_, layout_,
        std::get<std::unique_ptr<deepspeed::LowBitOptimizer>>(
            std::move(alone_)),
        params16_, *wrapper_options_);
    wrapper_->set_observer(&recorder);
  } else if (begins_with_zeros_) {
    std::vector<float> zeros(params_.size());
    inner_->step(params_, zeros);
  }
}

optim::StepReport DrivenOptimizer::step(std::size_t t,
                                        std::span<const float> grads) {
  std::vector<float> own(grads.begin(), grads.end());
  if (!wrapper_) return inner_->step(params_, own);
  for (float& g : own) g *= static_cast<float>(wrapper_->loss_scale());
  for (const json& place : meta_.at("inf_at"))
    if (place.at(0) == t && place.at(1) == comm_.rank())
      own.at(0) = std::numeric_limits<float>::infinity();
  std::vector<Half> halves(own.size());
  kernels::convert(own, halves);
  return wrapper_->step(params16_, halves);
}

std::span<const float> DrivenOptimizer::masters() const {
  if (wrapper_) return wrapper_->masters().as<float>();
  return params_;
}

std::vector<float> DrivenOptimizer::params16() const {
  std::vector<float> widened(params16_.size());
  kernels::convert(params16_, widened);
  return widened;
}

std::optional<double> DrivenOptimizer::loss_scale() const {
  if (!wrapper_) return std::nullopt;
  return wrapper_->loss_scale();
}

}  // namespace thinwire::replay
