// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "comm/failure.h"
#include "core/require.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/error.h"

namespace thinwire::comm {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (;;) {
    const std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

std::string quote(const std::vector<std::string_view>& lines,
                  std::size_t line) {
  return line < lines.size() ? fmt::format("\"{}\"", lines[line])
                             : "nothing (its text ends before)";
}

// Describes the first line in which a rank differs from rank 0. The result is
// the same on all ranks.
std::string first_difference(const std::vector<std::string>& texts) {
  const std::vector<std::string_view> reference = lines_of(texts[0]);
  std::size_t first_line = reference.size();
  std::optional<std::size_t> other;
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const std::vector<std::string_view> lines = lines_of(texts[rank]);
    const auto differ = std::mismatch(reference.begin(), reference.end(),
                                      lines.begin(), lines.end());
    if (differ.first == reference.end() && differ.second == lines.end())
      continue;
    const auto line =
        static_cast<std::size_t>(differ.first - reference.begin());
    if (other && line >= first_line) continue;
    first_line = line;
    other = rank;
  }
  if (!other) return "their checksums differ";
  return fmt::format("line {} is {} on rank 0 and {} on rank {}",
                     first_line + 1, quote(reference, first_line),
                     quote(lines_of(texts[*other]), first_line), *other);
}

// Waits for the other ranks before all of them throw the same error. If a rank
// threw at once, ranks that still gather would report only that this rank gave
// up.
void leave_together(Communicator& comm) noexcept {
  try {
    comm.barrier();
  } catch (const std::exception&) {
    // The message is already complete on ranks that have left.
  }
}

// Returns 1 + the error's code; 0 means that nothing was thrown.
std::int32_t status_of(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  const ErrorCode code =
      own != nullptr ? own->code() : ErrorCode::kFailedPrecondition;
  return 1 + static_cast<std::int32_t>(code);
}

}  // namespace

std::unique_ptr<Communicator> second_group(Communicator& comm) {
  try {
    return comm.split(0, comm.rank());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;
    return nullptr;
  }
}

std::vector<std::string> gather_texts(Communicator& comm,
                                      std::string_view text) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::int64_t own = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> sizes(ranks);
  comm.all_gather(ConstView(&own, 1, DType::kInt64), sizes);
  // A rank in another collective call may have sent values that are not sizes.
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (std::any_of(sizes.begin(), sizes.end(),
                  [](std::int64_t n) { return n < 0 || n > kMost; })) {
    constexpr std::string_view kText =
        "gather_texts: the ranks are in different collective calls";
    comm.give_up(kText);
    throw Error(ErrorCode::kCommFailure, std::string(kText));
  }
  std::vector<std::size_t> counts(sizes.begin(), sizes.end());
  std::size_t total = 0;
  for (const std::size_t count : counts) total += count;
  std::vector<std::uint8_t> bytes(total);
  comm.all_gather(ConstView(text.data(), text.size(), DType::kUInt8), bytes,
                  counts);
  std::vector<std::string> texts;
  auto begin = bytes.cbegin();
  for (const std::int64_t size : sizes) {
    texts.emplace_back(begin, begin + size);
    begin += size;
  }
  return texts;
}

void require_everywhere(Communicator& comm,
                        const std::function<void()>& check) {
  std::int32_t status = 0;
  std::string text;
  std::exception_ptr thrown;
  try {
    check();
  } catch (const std::exception& error) {
    thrown = std::current_exception();
    status = status_of(error);
    text = error.what();
  }
  std::vector<std::int32_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(ConstView(&status, 1, DType::kInt32), all);
  const auto failed =
      std::find_if(all.begin(), all.end(), [](auto s) { return s != 0; });
  if (failed == all.end()) return;
  const auto rank = static_cast<std::size_t>(failed - all.begin());
  const std::string cause = gather_texts(comm, text)[rank];
  leave_together(comm);
  if (thrown) std::rethrow_exception(thrown);
  throw Error(static_cast<ErrorCode>(*failed - 1),
              failure::gave_up(static_cast<int>(rank), cause));
}

void require_same(Communicator& comm, std::string_view what,
                  std::string_view text) {
  const auto hash = static_cast<std::int64_t>(checksum(text));
  std::vector<std::int64_t> hashes(static_cast<std::size_t>(comm.size()));
  comm.all_gather(ConstView(&hash, 1, DType::kInt64), hashes);
  if (std::all_of(hashes.begin(), hashes.end(),
                  [&](std::int64_t other) { return other == hashes[0]; })) {
    return;
  }
  const std::string difference = first_difference(gather_texts(comm, text));
  leave_together(comm);
  reject(fmt::format("{} must be the same on all ranks: {}", what, difference));
}

}  // namespace thinwire::comm
