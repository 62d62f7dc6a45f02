-- A Wireshark dissector of CSA-UD, the protocol of Spraywire's reliable messages (docs/protocol.md, section 2).
--
-- Wireshark takes RoCEv2 apart itself; this takes its payload where it is a packet of ours. To have it always, put this file into the
-- folder that Help > About > Folders names "Personal Lua Plugins"; for once:
--
--   tshark -X lua_script:docs/wireshark/spraywire.lua -r FILE -Y csaud
--
-- Filters: csaud, csaud.type == 1, csaud.session, csaud.seq, csaud.data.again, ...

local csaud = Proto("csaud", "CSA-UD (Spraywire reliable messages)")

local types = {
  [0] = "DATA", "FEEDBACK", "PROBE", "ANNOUNCE", "INIT", "COOKIE", "ACCEPT", "REFUSE", "RESET", "CLOSE", "REJECT",
  "PARITY",
}
local refusals = { [1] = "version", "full", "not listening", "sizes that do not fit" }
local goodbyes = { [0] = "by the application", "silence", "protocol error" }
local rejections = { [1] = "longer than its receive", "postponed" }

local f = {}
-- A field and where it stands: f.NAME is made of "csaud.ABBR".
local function field(name, make, abbr, ...)
  f[name] = make("csaud." .. abbr, ...)
end
local u8, u16, u32, u64, flag = ProtoField.uint8, ProtoField.uint16, ProtoField.uint32, ProtoField.uint64, ProtoField.bool

field("version", u8, "version", "Version", base.DEC, nil, 0xf0)
field("type", u8, "type", "Type", base.DEC, types, 0x0f)
field("flags", u8, "flags", "Flags", base.HEX)
field("path", u8, "path", "Path", base.DEC)
field("count", u8, "count", "Count", base.DEC)
field("session", u64, "session", "Session (the receiver's id)", base.HEX)
field("path_seq", u32, "path_seq", "Path sequence", base.DEC)
field("seq", u32, "seq", "Sequence", base.DEC)
field("time", u32, "time", "Time (ticks of 16 ns)", base.DEC)
field("payload", ProtoField.bytes, "payload", "Segment or parity shard")
-- DATA
field("ask", flag, "data.ask", "Answer in this round", 8, nil, 0x01)
field("again", flag, "data.again", "Sent before", 8, nil, 0x02)
field("void", flag, "data.void", "Void", 8, nil, 0x04)
field("fec", flag, "data.fec", "FEC extension", 8, nil, 0x08)
field("auth", flag, "data.auth", "Authentication tag", 8, nil, 0x10)
field("sync", flag, "data.sync", "SYNC", 8, nil, 0x20)
field("granted", flag, "data.granted", "Drew on the grant", 8, nil, 0x40)
field("more", flag, "data.more", "Another segment follows", 8, nil, 0x80)
field("class", u8, "data.class", "Class", base.DEC, nil, 0xf0)
field("priority", u8, "data.priority", "Priority", base.DEC, nil, 0x0f)
field("message", u32, "message", "Message", base.DEC)
field("segment", u32, "data.segment", "Segment", base.DEC)
field("communicator", u32, "communicator", "Communicator", base.DEC)
field("tag", u64, "tag", "Tag", base.HEX)
field("ordinal", u32, "data.ordinal", "Ordinal", base.DEC)
field("step", u32, "data.step", "Step", base.DEC)
field("length", u64, "data.length", "Length of the message", base.DEC)
field("stage", u8, "data.stage", "Stage", base.DEC)
field("tolerance", u8, "data.tolerance", "Tolerance (1/256)", base.DEC)
-- PARITY
field("codec", u8, "parity.codec", "Codec", base.DEC)
field("codec_version", u8, "parity.version", "Codec version", base.DEC)
field("segments", u8, "parity.segments", "Segments of the group", base.DEC)
field("shards", u8, "parity.shards", "Parity shards of the group", base.DEC)
field("index", u8, "parity.index", "Which of them", base.DEC)
field("stride", u8, "parity.stride", "Stride", base.DEC)
-- PROBE
field("asks", flag, "probe.asks", "Asks for announcements", 8, nil, 0x01)
field("forgot", flag, "probe.forgot", "Had no room for some", 8, nil, 0x02)
field("urgent", flag, "probe.urgent", "No answer came", 8, nil, 0x04)
-- FEEDBACK
field("cut", flag, "feedback.cut", "Cut", 8, nil, 0x01)
field("status", flag, "feedback.status", "Misses something", 8, nil, 0x02)
field("number", u32, "number", "Number", base.DEC)
field("next", u32, "feedback.next", "Next", base.DEC)
field("grant", u32, "grant", "Grant", base.DEC)
field("duplicates", u32, "feedback.duplicates", "Duplicates", base.DEC)
field("announced", u32, "feedback.announced", "Announced", base.DEC)
field("skipped", u32, "feedback.skipped", "Path sequences that did not come, in all", base.DEC)
field("gaps", u16, "feedback.gaps", "Gaps that they were in, in all", base.DEC)
field("repaired", u16, "feedback.repaired", "Segments recovered, in all", base.DEC)
field("share", u32, "feedback.share", "Share (bytes in flight)", base.DEC)
field("report", ProtoField.none, "feedback.report", "Path report")
field("late", flag, "feedback.report.late", "Late", 8, nil, 0x01)
field("report_path", u8, "feedback.report.path", "Path", base.DEC)
field("ce", u16, "feedback.report.ce", "Congestion Experienced, in all", base.DEC)
field("highest", u32, "feedback.report.highest", "Highest path sequence", base.DEC)
field("report_time", u32, "feedback.report.time", "Time of that packet (ticks of 16 ns)", base.DEC)
field("delay", u32, "feedback.report.delay", "Delay (ticks of 16 ns)", base.DEC)
field("word", u32, "feedback.word", "Word of the bitmap", base.HEX)
field("missing", u32, "feedback.missing", "Missing sequence", base.DEC)
-- ANNOUNCE
field("entry", ProtoField.none, "announce.entry", "Receives posted")
field("through", u32, "announce.through", "Through ordinal", base.DEC)
-- INIT and ACCEPT
field("id", u64, "offer.id", "Own id", base.HEX)
field("epoch", u64, "offer.epoch", "Epoch", base.HEX)
field("first", u32, "offer.first", "First value of the counters", base.DEC)
field("offer_segment", u32, "offer.segment", "Segment size", base.DEC)
field("window", u32, "offer.window", "Window (sequences)", base.DEC)
field("eager", u32, "offer.eager", "Eager limit (bytes)", base.DEC)
field("paths", u8, "offer.paths", "Paths", base.DEC)
field("codecs", u8, "offer.codecs", "FEC codecs", base.HEX)
field("messages", u16, "offer.messages", "Messages of several segments at once", base.DEC)
field("rail_ip", ProtoField.ipv6, "offer.rail.ip", "Further port: address")
field("rail_qpn", ProtoField.uint24, "offer.rail.qpn", "Further port: queue pair", base.HEX)
field("clock", u32, "accept.clock", "The responder's clock (ticks of 16 ns)", base.DEC)
field("cookie", ProtoField.bytes, "cookie", "Cookie")
-- REFUSE, CLOSE, REJECT
field("refusal", u8, "refuse.reason", "Reason", base.DEC, refusals)
field("goodbye", u8, "close.reason", "Reason", base.DEC, goodbyes)
field("rejection", u32, "reject.reason", "Reason", base.DEC, rejections)

local all = {}
for _, one in pairs(f) do
  all[#all + 1] = one
end
csaud.fields = all

local wrong = ProtoExpert.new("csaud.wrong", "The length is not what the fields say", expert.group.MALFORMED, expert.severity.ERROR)
csaud.experts = { wrong }

local bth_opcode = Field.new("infiniband.bth.opcode")
local immediate = Field.new("infiniband.immdt")
local pad_count = Field.new("infiniband.bth.padcnt")

-- Fields one after the other: { field, width } each; returns the offset behind them.
local function row(tree, buf, at, ...)
  for _, pair in ipairs({ ... }) do
    tree:add(pair[1], buf(at, pair[2]))
    at = at + pair[2]
  end
  return at
end

local function offer(tree, buf)
  row(tree, buf, 12, { f.id, 8 }, { f.epoch, 8 }, { f.first, 4 }, { f.offer_segment, 4 }, { f.window, 4 }, { f.grant, 4 },
    { f.eager, 4 }, { f.time, 4 }, { f.paths, 1 }, { f.codecs, 1 }, { f.messages, 2 })
end

-- The further ports of a side, as many as the count says, at the most three.
local function rails(tree, buf, at)
  local count = buf(3, 1):uint()
  for i = 0, (count <= 3 and count or 0) - 1 do
    tree:add(f.rail_ip, buf(at + 20 * i, 16))
    tree:add(f.rail_qpn, buf(at + 20 * i + 17, 3))
  end
end

-- For each type: its least length, and what takes it apart. That returns the length by its fields, if it knows, and what the packet's
-- line says.
local parse = {}

local function segment(tree, buf)
  for _, one in ipairs({ f.ask, f.again, f.void, f.fec, f.auth, f.sync, f.granted, f.more }) do
    tree:add(one, buf(1, 1))
  end
  tree:add(f.class, buf(3, 1))
  tree:add(f.priority, buf(3, 1))
  row(tree, buf, 12, { f.path_seq, 4 }, { f.seq, 4 }, { f.time, 4 }, { f.message, 4 }, { f.segment, 4 }, { f.communicator, 4 },
    { f.tag, 8 }, { f.ordinal, 4 }, { f.step, 4 }, { f.length, 6 }, { f.stage, 1 }, { f.tolerance, 1 })
end

parse[0] = { 60, function(tree, buf)
  segment(tree, buf)
  local last = buf:len()
  if buf(1, 1):bitfield(0, 1) == 1 then
    last = 60 + buf(52, 6):uint64():tonumber()
  end
  if last > 60 then
    tree:add(f.payload, buf(60, last - 60))
  end
  local again = buf(1, 1):bitfield(6, 1) == 1 and " again" or ""
  local void = buf(1, 1):bitfield(5, 1) == 1 and " void" or ""
  return nil, string.format("seq %u, message %u, segment %u, of %s bytes%s%s", buf(16, 4):uint(), buf(24, 4):uint(),
    buf(28, 4):uint(), tostring(buf(52, 6):uint64()), again, void)
end }

parse[1] = { 44, function(tree, buf)
  tree:add(f.cut, buf(1, 1))
  tree:add(f.status, buf(1, 1))
  row(tree, buf, 12, { f.number, 4 }, { f.next, 4 }, { f.grant, 4 }, { f.duplicates, 4 }, { f.announced, 4 }, { f.skipped, 4 },
    { f.gaps, 2 }, { f.repaired, 2 }, { f.share, 4 })
  local reports, words = buf(2, 1):uint(), buf(3, 1):uint()
  local say = 44 + 16 * reports + 4 * words
  if buf:len() < say then
    return say, "cut off"
  end
  for i = 0, reports - 1 do
    local at = 44 + 16 * i
    local one = tree:add(f.report, buf(at, 16))
    row(one, buf, at, { f.report_path, 1 }, { f.late, 1 }, { f.ce, 2 }, { f.highest, 4 }, { f.report_time, 4 }, { f.delay, 4 })
  end
  local next_seq = buf(16, 4):uint()
  local base_seq = next_seq - next_seq % 32
  local missing, holes = 0, {}
  for w = 0, words - 1 do
    local at = 44 + 16 * reports + 4 * w
    local word = buf(at, 4)
    local item = tree:add(f.word, word)
    for bit = 0, 31 do
      -- bitfield counts from the most significant bit.
      if word:bitfield(31 - bit, 1) == 0 then
        holes[#holes + 1] = { item, word, (base_seq + 32 * w + bit) % 2 ^ 32 }
      end
    end
  end
  -- Behind the last that arrived, zeros say nothing.
  local last = -1
  for w = words - 1, 0, -1 do
    local word = buf(44 + 16 * reports + 4 * w, 4)
    for bit = 31, 0, -1 do
      if last < 0 and word:bitfield(31 - bit, 1) == 1 then
        last = 32 * w + bit
      end
    end
  end
  for _, hole in ipairs(holes) do
    if (hole[3] - base_seq) % 2 ^ 32 < last then
      hole[1]:add(f.missing, hole[2], hole[3]):set_generated()
      missing = missing + 1
    end
  end
  return say, string.format("number %u, next %u, %u missing", buf(12, 4):uint(), next_seq, missing)
end }

parse[2] = { 24, function(tree, buf)
  tree:add(f.asks, buf(1, 1))
  tree:add(f.forgot, buf(1, 1))
  tree:add(f.urgent, buf(1, 1))
  row(tree, buf, 12, { f.path_seq, 4 }, { f.seq, 4 }, { f.time, 4 })
  return 24, string.format("path %u, path sequence %u", buf(2, 1):uint(), buf(12, 4):uint())
end }

parse[3] = { 16, function(tree, buf)
  tree:add(f.number, buf(12, 4))
  local entries = buf(3, 1):uint()
  local say = 16 + 16 * entries
  if buf:len() >= say then
    for i = 0, entries - 1 do
      local at = 16 + 16 * i
      row(tree:add(f.entry, buf(at, 16)), buf, at, { f.communicator, 4 }, { f.tag, 8 }, { f.through, 4 })
    end
  end
  return say, string.format("number %u, %u channels", buf(12, 4):uint(), entries)
end }

parse[4] = { 160, function(tree, buf)
  offer(tree, buf)
  tree:add(f.cookie, buf(56, 16))
  rails(tree, buf, 72)
  return 160, string.format("own id 0x%s", tostring(buf(12, 8):bytes()))
end }

parse[5] = { 32, function(tree, buf)
  tree:add(f.cookie, buf(12, 16))
  tree:add(f.time, buf(28, 4))
  return 32, ""
end }

parse[6] = { 124, function(tree, buf)
  offer(tree, buf)
  tree:add(f.clock, buf(56, 4))
  rails(tree, buf, 64)
  return 124, string.format("own id 0x%s", tostring(buf(12, 8):bytes()))
end }

parse[7] = { 16, function(tree, buf)
  tree:add(f.refusal, buf(3, 1))
  tree:add(f.time, buf(12, 4))
  return 16, refusals[buf(3, 1):uint()] or "unknown reason"
end }

parse[8] = { 12, function()
  return 12, ""
end }

parse[9] = { 12, function(tree, buf)
  tree:add(f.goodbye, buf(3, 1))
  return 12, goodbyes[buf(3, 1):uint()] or "unknown reason"
end }

parse[10] = { 24, function(tree, buf)
  row(tree, buf, 12, { f.message, 4 }, { f.rejection, 4 }, { f.seq, 4 })
  return 24, string.format("message %u: %s", buf(12, 4):uint(), rejections[buf(16, 4):uint()] or "unknown reason")
end }

parse[11] = { 72, function(tree, buf)
  segment(tree, buf)
  row(tree, buf, 60, { f.codec, 1 }, { f.codec_version, 1 }, { f.segments, 1 }, { f.shards, 1 }, { f.index, 1 }, { f.stride, 1 })
  if buf:len() > 72 then
    tree:add(f.payload, buf(72))
  end
  return nil, string.format("%u of %u, of %u segments from seq %u by %u, message %u", buf(64, 1):uint() + 1, buf(63, 1):uint(),
    buf(62, 1):uint(), buf(16, 4):uint(), buf(65, 1):uint(), buf(24, 4):uint())
end }

-- Whether a DATA says that another follows it in the packet, and there is one.
local function follower(buf)
  if buf(0, 1):uint() ~= 0x10 or buf(1, 1):bitfield(0, 1) == 0 then
    return nil
  end
  local from = 60 + buf(52, 6):uint64():tonumber()
  if from + 60 > buf:len() or buf(from, 1):uint() ~= 0x10 then
    return nil
  end
  return buf(from):tvb()
end

function csaud.dissector(buf, pinfo, tree)
  local kind = buf(0, 1):bitfield(4, 4)
  pinfo.cols.protocol = "CSA-UD"
  local top = tree:add(csaud, buf())
  top:add(f.version, buf(0, 1))
  top:add(f.type, buf(0, 1))
  row(top, buf, 1, { f.flags, 1 }, { f.path, 1 }, { f.count, 1 }, { f.session, 8 })
  local say, line = parse[kind][2](top, buf)
  if say and say ~= buf:len() then
    top:add_proto_expert_info(wrong)
  end
  top:append_text(", " .. types[kind])
  local text, rest = types[kind] .. (line ~= "" and " " .. line or ""), follower(buf)
  if rest then
    csaud.dissector(rest, pinfo, tree)
    text = text .. " | " .. tostring(pinfo.cols.info)
  end
  pinfo.cols.info = text
  return buf:len()
end

-- Whether a payload of UD is a packet of ours. Control says so by its immediate; data by what it must and must not have.
local function is_ours(buf)
  local opcode, imm = bth_opcode(), immediate()
  if not opcode or buf:len() < 12 then
    return false
  end
  local head = buf(0, 1):uint()
  local kind = head % 16
  if head - kind ~= 0x10 or not parse[kind] or buf:len() < parse[kind][1] then
    return false
  end
  if opcode.value == 0x65 then
    return kind > 0 and kind ~= 11 and imm and imm.range:uint() == 0x53570100 + kind
  end
  if opcode.value ~= 0x64 or (kind ~= 0 and kind ~= 11) then
    return false
  end
  local head_len = parse[kind][1]
  local flags, length = buf(1, 1):uint(), buf(52, 6):uint64():tonumber()
  local void = buf(1, 1):bitfield(5, 1) == 1
  -- Not extensions that there are not yet.
  if buf(1, 1):bitfield(3, 2) ~= 0 then
    return false
  end
  if flags >= 0x80 then
    return kind == 0 and follower(buf) ~= nil and not void and buf(28, 4):uint() == 0
  end
  return (void and buf:len() == head_len) or (not void and buf:len() - head_len <= length)
end

local function try(buf, pinfo, tree)
  -- The pad is not ours.
  local pad = pad_count()
  if pad and pad.value > 0 and buf:len() > pad.value then
    buf = buf(0, buf:len() - pad.value):tvb()
  end
  if not is_ours(buf) then
    return false
  end
  csaud.dissector(buf, pinfo, tree)
  return true
end

csaud:register_heuristic("infiniband.payload", try)
