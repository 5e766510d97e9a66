#include "parallel/host_info.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(HostInfo, NameAndIdentityAreStable) {
  EXPECT_FALSE(host_name().empty());
  EXPECT_FALSE(host_id().empty());
  EXPECT_EQ(host_id(), host_id());
}

TEST(HostInfo, AddressesLeaveLoopbackAndLinkLocalOut) {
  for (const auto& [interface, address] : host_addresses()) {
    EXPECT_FALSE(interface.empty());
    EXPECT_NE(address, "127.0.0.1");
    EXPECT_NE(address, "::1");
    EXPECT_NE(address.substr(0, 5), "fe80:");
  }
  EXPECT_FALSE(describe_interfaces().empty()) << "messages say so when there is none";
}

}  // namespace
}  // namespace tandem
