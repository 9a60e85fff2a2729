// SPDX-License-Identifier: Apache-2.0
#include "optim/gradient_window.h"

#include <fmt/format.h>

#include "core/require.h"

namespace thinwire::optim {

void GradientWindow::begin(Backward which) {
  if (in_backward_) refuse("begin_backward: inside another backward");
  if (is_complete_)
    refuse("begin_backward: the last backward has been; call step() first");
  if (which.is_first == has_begun_)
    refuse(which.is_first
               ? "begin_backward: there was a first backward since step()"
               : "begin_backward: the first backward since step() is missing");
  backward_ = which;
  in_backward_ = true;
  has_begun_ = true;
  is_complete_ = which.is_last;
  has_come_.assign(layout_.parameters().size(), false);
}

void GradientWindow::require_open(std::size_t parameter) const {
  const auto parameters = layout_.parameters();
  require(parameter < parameters.size(), "index",
          fmt::format("below {}", parameters.size()), parameter);
  if (!in_backward_) refuse("collect: outside of a backward");
  if (has_come_[parameter])
    refuse(fmt::format("collect: '{}' has come before in this backward",
                       parameters[parameter].name));
}

void GradientWindow::collect(std::size_t parameter) {
  require_open(parameter);
  has_come_[parameter] = true;
}

void GradientWindow::end() {
  if (!in_backward_) refuse("end_backward: there was no begin_backward()");
  in_backward_ = false;
}

void GradientWindow::restart() {
  has_begun_ = false;
  in_backward_ = false;
  is_complete_ = false;
}

}  // namespace thinwire::optim
