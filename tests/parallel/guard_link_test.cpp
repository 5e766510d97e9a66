#include "parallel/guard_link.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <utility>

namespace tandem {
namespace {

// Two ends of a stream; the second is left raw to send what no GuardLink would.
std::pair<GuardLink, FileDescriptor> link_and_raw_end() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  return {GuardLink(FileDescriptor(ends[0])), FileDescriptor(ends[1])};
}

std::pair<GuardLink, GuardLink> link_pair() {
  auto [link, raw] = link_and_raw_end();
  return {std::move(link), GuardLink(std::move(raw))};
}

TEST(GuardLink, FramesArriveWholeAndInOrder) {
  auto [a, b] = link_pair();
  a.send(FrameType::kHeartbeat, "one");
  a.send(FrameType::kGoodbye, "");
  const auto frames = b.receive();
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].type, FrameType::kHeartbeat);
  EXPECT_EQ(frames[0].body, "one");
  EXPECT_EQ(frames[1].type, FrameType::kGoodbye);
  EXPECT_TRUE(b.receive().empty());
  EXPECT_TRUE(b.open());
}

TEST(GuardLink, LastWordsAreReadBeforeTheEndIsSeen) {
  auto [a, b] = link_pair();
  a.send(FrameType::kExit, "code");
  a.close();
  const auto frames = b.receive();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].body, "code");
  EXPECT_FALSE(b.open());
  b.send(FrameType::kHeartbeat, "to nobody");  // no signal, no error
}

TEST(GuardLink, ASlowReaderBlocksNobody) {
  auto [a, b] = link_pair();
  const std::string body(1 << 19, 'x');
  for (int i = 0; i < 20; ++i) a.send(FrameType::kMessage, body);
  EXPECT_GT(a.unsent_bytes(), 0u) << "10 MiB do not fit into a socket";
  std::size_t received = 0;
  for (int i = 0; i < 10000 && received < 20; ++i) {
    for (const auto& frame : b.receive()) {
      EXPECT_EQ(frame.body, body);
      ++received;
    }
    a.flush();
  }
  EXPECT_EQ(received, 20u);
  EXPECT_EQ(a.unsent_bytes(), 0u);
}

TEST(GuardLink, FramesCutInPiecesAreJoined) {
  auto [capture, raw_capture] = link_and_raw_end();
  capture.send(FrameType::kMessage, "hello");
  char bytes[256];
  const auto size = read(raw_capture.get(), bytes, sizeof bytes);
  ASSERT_GT(size, 0);
  auto [link, raw] = link_and_raw_end();
  for (ssize_t i = 0; i < size; ++i) {
    EXPECT_TRUE(link.receive().empty());
    ASSERT_EQ(write(raw.get(), bytes + i, 1), 1);
  }
  const auto frames = link.receive();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].body, "hello");
}

TEST(GuardLink, StrangersAreCutOff) {
  auto [link, raw] = link_and_raw_end();
  const std::string request = "GET / HTTP/1.1\r\nHost: spark1\r\n\r\n";
  ASSERT_EQ(write(raw.get(), request.data(), request.size()), static_cast<ssize_t>(request.size()));
  EXPECT_TRUE(link.receive().empty());
  EXPECT_FALSE(link.open());
}

TEST(GuardLink, HandshakeTakesOneFrameAndLeavesTheRest) {
  auto [a, b] = link_pair();
  a.send(FrameType::kHello, "first");
  a.send(FrameType::kHeartbeat, "second");
  Frame frame;
  ASSERT_TRUE(b.receive_one(frame, 1));
  EXPECT_EQ(frame.body, "first");
  const auto rest = b.receive();
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].body, "second");
  EXPECT_FALSE(b.receive_one(frame, 0.05)) << "nothing comes: the wait ends";
}

TEST(FrameReader, ShortBodiesAreRefused) {
  FrameWriter writer;
  writer.put(std::int32_t{5}).put_text("abc");
  FrameReader whole(writer.body());
  EXPECT_EQ(whole.get<std::int32_t>(), 5);
  EXPECT_EQ(whole.get_text(), "abc");
  EXPECT_THROW(whole.get<char>(), Error);
  FrameReader cut(std::string_view(writer.body()).substr(0, writer.body().size() - 1));
  cut.get<std::int32_t>();
  EXPECT_THROW(cut.get_text(), Error);
}

}  // namespace
}  // namespace tandem
