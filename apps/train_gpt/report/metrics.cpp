// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/report/metrics.h"

namespace thinwire::train_gpt {
namespace {

constexpr std::uint64_t kNone = 0;  // of what earlier versions did not count

}  // namespace

std::string line_of(const StepRow& row) {
  return Json{{"step", row.step},
              {"loss", row.loss},
              {"lr", row.lr},
              {"phase", row.phase},
              {"tokens", row.tokens},
              {"bytes_sent", row.bytes_sent},
              {"seconds", row.seconds},
              {"loss_scale", row.loss_scale},
              {"memory_bytes", row.memory_bytes},
              {"masked", row.masked},
              {"heavy", row.heavy},
              {"revived", row.revived},
              {"time", row.time},
              {"grad_norm", row.grad_norm},
              {"applied", row.applied},
              {"wait_seconds", row.wait_seconds},
              {"update_seconds", row.update_seconds},
              {"exchange_seconds", row.exchange_seconds},
              {"bytes_between_hosts", row.bytes_between_hosts}}
      .dump();
}

std::string line_of(const ValidationRow& row) {
  return Json{{"step", row.step}, {"val_loss", row.val_loss}}.dump();
}

std::string lines_of(const RunRecord& run) {
  std::string text;
  auto validation = run.validations.begin();
  const auto add_validations = [&](std::int64_t before) {
    for (; validation != run.validations.end() && validation->step < before;
         ++validation)
      text += line_of(*validation) + "\n";
  };
  for (const StepRow& row : run.steps) {
    add_validations(row.step);
    text += line_of(row) + "\n";
  }
  add_validations(std::numeric_limits<std::int64_t>::max());
  return text;
}

void read_lines(std::istream& file, bool was_killed, RunRecord& run) {
  for (std::string line; std::getline(file, line);) {
    if (file.eof() && was_killed) break;  // in the middle of this line
    const Json row = Json::parse(line);
    if (row.contains("val_loss")) {
      run.validations.push_back({row.at("step"), number(row, "val_loss")});
    } else {
      run.steps.push_back(
          {.step = row.at("step"),
           .loss = number(row, "loss"),
           .lr = row.at("lr"),
           .phase = row.at("phase"),
           .loss_scale = number(row, "loss_scale"),
           .tokens = row.at("tokens"),
           .bytes_sent = row.at("bytes_sent"),
           .seconds = row.at("seconds"),
           .memory_bytes = row.at("memory_bytes"),
           .masked = row.value("masked", kNone),
           .heavy = row.value("heavy", kNone),
           .revived = row.value("revived", kNone),
           .time = row.value("time", 0.0),
           .grad_norm =
               row.contains("grad_norm") ? number(row, "grad_norm") : 0,
           .applied = row.value("applied", true),
           .wait_seconds = row.value("wait_seconds", 0.0),
           .update_seconds = row.value("update_seconds", 0.0),
           .exchange_seconds = row.value("exchange_seconds", 0.0),
           .bytes_between_hosts = row.value("bytes_between_hosts", kNone)});
    }
  }
}

}  // namespace thinwire::train_gpt
