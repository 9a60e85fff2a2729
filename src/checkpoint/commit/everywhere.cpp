// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>

#include "checkpoint/commit/root.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

std::string broadcast_text(comm::Communicator& comm, const std::string& text) {
  auto bytes = static_cast<std::int64_t>(text.size());
  comm.broadcast(View(&bytes, 1, DType::kInt64), 0);
  std::string all = text;
  all.resize(static_cast<std::size_t>(bytes));
  comm.broadcast(View(all.data(), all.size(), DType::kUInt8), 0);
  return all;
}

std::uint64_t sum_over_ranks(comm::Communicator& comm, std::uint64_t own) {
  auto sum = static_cast<std::int64_t>(own);
  comm.all_reduce(View(&sum, 1, DType::kInt64));
  return static_cast<std::uint64_t>(sum);
}

void everywhere(comm::Communicator& comm, const std::function<void()>& body) {
  std::int32_t status = 0;  // else 1 + the code
  std::string text;
  const auto failed = [&](ErrorCode code, const std::exception& error) {
    status = 1 + static_cast<std::int32_t>(code);
    text = error.what();
  };
  try {
    body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCommFailure) throw;  // nobody to tell
    failed(error.code(), error);
  } catch (const std::exception& error) {
    failed(ErrorCode::kFailedPrecondition, error);
  }
  std::vector<std::int32_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(ConstView(&status, 1, DType::kInt32), all);
  const auto first =
      std::find_if(all.begin(), all.end(), [](auto s) { return s != 0; });
  if (first == all.end()) return;
  const auto rank = static_cast<std::size_t>(first - all.begin());
  throw Error(static_cast<ErrorCode>(*first - 1),
              fmt::format("rank {}: {}", rank, gather_texts(comm, text)[rank]));
}

}  // namespace thinwire::checkpoint
