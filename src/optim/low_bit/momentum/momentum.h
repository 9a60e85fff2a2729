// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optim/low_bit/momentum/kept_momentum.h"
#include "optim/low_bit/momentum/momentum_exchange.h"
#include "optim/low_bit/momentum/momentum_participation.h"
#include "optim/low_bit/restored_residuals.h"
#include "optim/state_parts.h"

namespace thinwire::optim {

/// The momentum of a low-bit optimizer, averaged over the ranks with one bit
/// per element and error feedback. Each member uses only those declared before
/// it.
struct CompressedMomentum {
  /// `keeps_previous` makes KeptMomentum::previous() available.
  CompressedMomentum(LowBitModel& model, bool keeps_previous)
      : form(model),
        restored(model),
        exchange(model, form, restored, keeps_previous),
        participation(model, form, exchange) {}
  CompressedMomentum(const CompressedMomentum&) = delete;
  CompressedMomentum& operator=(const CompressedMomentum&) = delete;

  /// Lists the momentum as array `name`, its residuals and the participation.
  /// `of_gradients` are residuals that are saved instead of the momentum's.
  void list(StateParts& parts, LowBitModel& model, const char* name,
            Sharing sharing, const std::optional<ResidualViews>& of_gradients);

  KeptMomentum form;
  RestoredResiduals restored;
  MomentumExchange exchange;
  MomentumParticipation participation;
};

}  // namespace thinwire::optim
