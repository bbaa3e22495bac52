-- The exchange of a pool's routers: services/core/leases/exchange.py, which says what each figure means, in a store.
--
-- KEYS  state     one packed table: the run, and what is known of routers and classes
--       sums      hash: served, requests, tokens, asked, asked at, tag, steady at (doubles) of each tenant in each class
--       received  sorted set: when each of these was reported last
--       active    sorted set: when each tenant in a class was active last
--       weights   hash: the weight of each of these
-- ARGV  the report (MessagePack, fields in the order of UsageReport), a random name for a new run, and the time in
--       seconds, for tests: if it is empty, the store's clock counts
-- Returns a UsageAnswer, in MessagePack.
--
-- If a key is missing (a restart, an eviction), a new run begins. So every key has a member that stays, MARK. The same
-- holds if the clock was set back, or if nobody has called for FORGET_S.
-- Fields are class, zero byte, tenant. The weight A of a class is kept up to date instead of being added up.

local ACTIVE_FOR_S, DEMAND_S, LEVEL_S = 1, 3, 1
local FORGET_S, FORGET_ROUTER_S, FORGET_AT_ONCE = 600, 86400, 100
local AT_ONCE = 1000 -- arguments of one command: Lua's stack is small
local MARK = string.rep('-', 65) -- so long that the server indexes a small hash as well, instead of reading through it
local SUMS_FORMAT = '<ddddddd'

local STATE, SUMS, RECEIVED, ACTIVE, WEIGHTS = unpack(KEYS)

local texts = {} -- by number: most tenants have one of a few weights

local function exact(number)
  local text = texts[number] or string.format('%.17g', number)
  texts[number] = text
  return text
end

local function bulk(command, key, arguments)
  for first = 1, #arguments, AT_ONCE do
    redis.call(command, key, unpack(arguments, first, math.min(first + AT_ONCE - 1, #arguments)))
  end
end

-- The values of these fields of a hash, by field.
local function values(key, fields)
  local found = {}
  for first = 1, #fields, AT_ONCE do
    local last = math.min(first + AT_ONCE - 1, #fields)
    for offset, value in ipairs(redis.call('HMGET', key, unpack(fields, first, last))) do
      found[fields[first + offset - 1]] = value
    end
  end
  return found
end

-- The order of bytes. Lua's own order of strings is that of the server's locale.
local function precedes(one, other)
  for at = 1, math.min(#one, #other) do
    local left, right = one:byte(at), other:byte(at)
    if left ~= right then
      return left < right
    end
  end
  return #one < #other
end

local function sorted(map)
  local names = {}
  for name in pairs(map) do
    names[#names + 1] = name
  end
  table.sort(names, precedes)
  return names
end

local function begin(run, now)
  redis.call('DEL', unpack(KEYS))
  redis.call('HSET', SUMS, MARK, '')
  redis.call('HSET', WEIGHTS, MARK, '')
  redis.call('ZADD', RECEIVED, '+inf', MARK)
  redis.call('ZADD', ACTIVE, '+inf', MARK)
  return {run = run, now = now, levels = {}, stamps = {}, classes = {}, turns = {}, virtual = {}, waiting = {}, active = {}}
end

local function load(run, now)
  if redis.call('EXISTS', unpack(KEYS)) == #KEYS then
    local state = cmsgpack.unpack(redis.call('GET', STATE))
    if now >= state.now - LEVEL_S and now <= state.now + FORGET_S then
      return state
    end
  end
  return begin(run, now)
end

-- ---- one call

local report = cmsgpack.unpack(ARGV[1])
local router, stamp, run, levels, rows = unpack(report, 1, 5)
local now = tonumber(ARGV[3])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1e6
end

local fields, class_weights = {}, {}
for at, row in ipairs(rows) do
  local tenant, class, weight, served, asked, requests, tokens = unpack(row, 1, 7)
  local sum = weight + served + asked + requests + tokens
  if sum - sum ~= 0 then
    return redis.error_reply('ERR a figure of the report is not finite')
  end
  fields[at] = class .. '\0' .. tenant
end
for _, level in ipairs(levels) do
  class_weights[level[1]] = level[2]
end

local state = load(ARGV[2], now)
now = math.max(now, state.now) -- a clock that was set back a little stands still
state.now = now

local held = values(SUMS, fields)
local sums = {}
for field, packed in pairs(held) do
  if packed then
    sums[field] = {struct.unpack(SUMS_FORMAT, packed)}
  end
end

local function fade(asked, asked_at)
  return asked * math.exp((asked_at - now) / DEMAND_S)
end

local function raise(class, virtual)
  state.virtual[class] = math.max(state.virtual[class] or virtual, virtual)
end

-- The tag of a tenant, and when it last waited at a router from one report to the next.
local function tagged(row, tag, steady_at)
  local class, weight, served, waits, emptied = row[2], row[3], row[4], row[9], row[10]
  tag = tag + served / weight
  if waits and now - steady_at > LEVEL_S then
    tag = math.max(tag, state.virtual[class] or 0)
  end
  return tag, waits and not emptied and now or steady_at
end

local function add()
  local hash, set = {}, {}
  for at, row in ipairs(rows) do
    local _, class, _, served, asked, requests, tokens = unpack(row, 1, 7)
    local field = fields[at]
    local old = sums[field] or {0, 0, 0, 0, now, 0, -math.huge}
    local tag, steady_at = tagged(row, old[6], old[7])
    sums[field] = {
      old[1] + served, old[2] + requests, old[3] + tokens, fade(old[4], old[5]) + asked, now, tag, steady_at,
    }
    state.classes[class] = (state.classes[class] or 0) + served
    state.turns[class] = (state.turns[class] or 0) + served / (class_weights[class] or 1)
    hash[#hash + 1], hash[#hash + 2] = field, struct.pack(SUMS_FORMAT, unpack(sums[field]))
    set[#set + 1], set[#set + 2] = exact(now), field
  end
  bulk('HSET', SUMS, hash)
  bulk('ZADD', RECEIVED, set)
end

-- V goes on with the lowest tag of those that wait steadily. Returns it by class.
local function advance()
  local lowest = {}
  for _, said in pairs(state.levels) do
    for _, level in ipairs(said[2]) do
      if level[4] then
        lowest[level[1]] = math.min(lowest[level[1]] or level[4], level[4])
      end
    end
  end
  for _, level in ipairs(levels) do
    if level[5] then
      raise(level[1], level[5])
    end
  end
  for class, tag in pairs(lowest) do
    raise(class, tag)
  end
  return lowest
end

-- V goes on with what is served in classes in which nobody waits steadily.
local function follow(steady)
  for at, row in ipairs(rows) do
    if row[4] > 0 and not steady[row[2]] then
      raise(row[2], sums[fields[at]][6])
    end
  end
end

local function change_weight(class, tenants, weight)
  local of_class = state.active[class] or {0, 0}
  of_class = {of_class[1] + tenants, of_class[2] + weight}
  state.active[class] = of_class[1] > 0 and of_class or nil -- what rounding has left goes with the last one
end

local function mark_active()
  local active = {}
  for at, row in ipairs(rows) do
    if row[8] then
      active[#active + 1] = fields[at]
    end
  end
  local known = values(WEIGHTS, active)
  local hash, set = {}, {}
  for at, row in ipairs(rows) do
    local class, weight, field = row[2], row[3], fields[at]
    if row[8] then
      local before = known[field]
      if before ~= exact(weight) then
        change_weight(class, before and 0 or 1, weight - tonumber(before or 0))
        known[field] = exact(weight)
        hash[#hash + 1], hash[#hash + 2] = field, known[field]
      end
      set[#set + 1], set[#set + 2] = exact(now), field
    end
  end
  bulk('HSET', WEIGHTS, hash)
  bulk('ZADD', ACTIVE, set)
end

local function oldest(key, before)
  return redis.call('ZRANGEBYSCORE', key, '-inf', '(' .. exact(before), 'LIMIT', 0, FORGET_AT_ONCE)
end

local function forget()
  local quiet = oldest(ACTIVE, now - ACTIVE_FOR_S)
  while #quiet > 0 do -- each was put there by a row
    local weights = values(WEIGHTS, quiet)
    for _, field in ipairs(quiet) do
      change_weight(field:sub(1, field:find('\0', 1, true) - 1), -1, -tonumber(weights[field]))
    end
    bulk('HDEL', WEIGHTS, quiet)
    bulk('ZREM', ACTIVE, quiet)
    quiet = oldest(ACTIVE, now - ACTIVE_FOR_S)
  end
  local forgotten = oldest(RECEIVED, now - FORGET_S)
  bulk('HDEL', SUMS, forgotten)
  bulk('ZREM', RECEIVED, forgotten)
  for _, field in ipairs(forgotten) do
    sums[field] = nil
  end
  for _, name in ipairs(sorted(state.stamps)) do
    if now - state.stamps[name][1] > FORGET_ROUTER_S then
      state.stamps[name] = nil
    end
  end
end

-- The classes that wait at any router.
local function waiting_now()
  local waiting = {}
  for _, said in pairs(state.levels) do
    for _, level in ipairs(said[2]) do
      if level[3] then
        waiting[level[1]] = true
      end
    end
  end
  return sorted(waiting)
end

local function begin_waiting(names)
  for _, name in ipairs(sorted(state.waiting)) do
    if now - state.waiting[name] > ACTIVE_FOR_S then
      state.waiting[name] = nil
    end
  end
  for _, name in ipairs(names) do
    if not state.waiting[name] then
      local lowest
      for other in pairs(state.waiting) do
        lowest = math.min(lowest or math.huge, state.turns[other] or 0)
      end
      state.turns[name] = math.max(state.turns[name] or 0, lowest or 0)
      state.classes[name] = state.classes[name] or 0
    end
    state.waiting[name] = now
  end
end

local known = state.stamps[router] or {now, 0, 0}
known[1] = now
local added = run == state.run
state.levels[router] = {now, levels}
for _, name in ipairs(sorted(state.levels)) do
  if now - state.levels[name][1] > LEVEL_S then
    state.levels[name] = nil
  end
end
local steady = advance()
if added and (stamp[1] > known[2] or stamp[1] == known[2] and stamp[2] > known[3]) then
  known = {now, stamp[1], stamp[2]}
  add()
  follow(steady)
end
state.stamps[router] = known
mark_active()
forget()
begin_waiting(waiting_now())

redis.call('SET', STATE, cmsgpack.pack(state))
for _, key in ipairs(KEYS) do
  redis.call('PEXPIRE', key, FORGET_S * 1000)
end

local totals, classes, weights, virtual = {}, {}, {}, {}
for at, row in ipairs(rows) do
  local sum = sums[fields[at]] or {0, 0, 0, 0, now, 0}
  totals[at] = {row[1], row[2], sum[1], fade(sum[4], sum[5]) / DEMAND_S, sum[2], sum[3], sum[6]}
end
for at, name in ipairs(sorted(state.classes)) do
  classes[at] = {name, state.classes[name], state.turns[name]}
end
for at, name in ipairs(sorted(state.active)) do
  weights[at] = {name, state.active[name][2]}
end
for at, name in ipairs(sorted(state.virtual)) do
  virtual[at] = {name, state.virtual[name]}
end
return cmsgpack.pack({state.run, stamp, added, #sorted(state.levels), totals, classes, weights, virtual})
