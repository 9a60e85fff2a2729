// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iterator>

#include "config/keys.h"

namespace thinwire::config {

namespace {

std::string_view status_text(const KeyRule& rule) {
  switch (rule.status) {
    case KeyStatus::kSupported:
      return "supported";
    case KeyStatus::kIgnored:
      return "ignored (no effect)";
    case KeyStatus::kRejected:
      return "rejected";
  }
  return "";
}

std::string exception_text(const KeyRule& rule) {
  if (rule.harmless.empty()) return "";
  if (rule.harmless == kDisabled) return ", unless not `enabled`";
  return fmt::format(", unless `{}`", rule.harmless);
}

}  // namespace

std::string key_table() {
  std::string text = "| key | | what happens |\n|---|---|---|\n";
  for (const KeyRule& rule : key_rules())
    fmt::format_to(std::back_inserter(text), "| `{}` | {}{} | {}{} |\n",
                   rule.path, status_text(rule), exception_text(rule),
                   rule.text,
                   rule.only.empty() ? "" : fmt::format(" ({})", rule.only));
  return text;
}

}  // namespace thinwire::config
